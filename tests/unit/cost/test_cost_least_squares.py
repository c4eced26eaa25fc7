import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost import least_squares

numbers = st.floats(0.1, 10)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=6, max_size=12), st.tuples(numbers, numbers, numbers))
def test_exact_coefficients_of_0_or_more_leave_no_error(rows, truth):
    targets = [sum(a * b for a, b in zip(row, truth, strict=True)) for row in rows]
    values = least_squares.non_negative(rows, targets)
    for row, target in zip(rows, targets, strict=True):
        assert sum(a * b for a, b in zip(row, values, strict=True)) == pytest.approx(target, rel=1e-3)


def test_a_coefficient_that_would_be_negative_is_zero():
    rows = [(1.0, float(x)) for x in range(1, 6)]
    intercept, slope = least_squares.non_negative(rows, [-1.0 + 2 * x for x in range(1, 6)])
    assert intercept == 0
    assert 1.5 < slope < 2


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=8), st.data())
def test_no_other_coefficients_of_0_or_more_do_better(rows, data):
    targets = data.draw(st.lists(st.floats(-5, 5), min_size=len(rows), max_size=len(rows)))
    other = data.draw(st.tuples(st.floats(0, 5), st.floats(0, 5)))

    def error(values):
        return sum(
            (sum(a * b for a, b in zip(r, values, strict=True)) - y) ** 2 for r, y in zip(rows, targets, strict=True)
        )

    assert error(least_squares.non_negative(rows, targets)) <= error(other) * (1 + 1e-9) + 1e-6


def test_an_inverse_times_its_matrix_is_one():
    inverse = least_squares.inverted(((4.0, 1.0), (1.0, 3.0)))
    assert inverse[0] == pytest.approx((3 / 11, -1 / 11))
    assert inverse[1] == pytest.approx((-1 / 11, 4 / 11))


def test_a_singular_matrix_has_no_inverse():
    assert least_squares.inverted(((1.0, 2.0), (2.0, 4.0))) is None


def test_a_column_that_repeats_another_is_dependent():
    assert least_squares.independent_columns([(1.0, 2.0, 1.0), (1.0, 2.0, 5.0), (1.0, 2.0, 0.5)]) == (0, 2)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 6.314), (2, 2.920), (3, 2.353), (5, 2.015), (10, 1.812), (30, 1.697), (10**6, 1.645)]
)
def test_students_95th_percentile_is_the_printed_one(degrees, quantile):
    assert least_squares.student_quantile(0.95, degrees) == pytest.approx(quantile, rel=0.005)
