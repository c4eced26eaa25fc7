"""Amounts of money and time on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from raysweep.cli.choose import command


@pytest.mark.parametrize("amount", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("option", ["--budget-usd", "--budget-hours"])
def test_a_budget_is_a_finite_number_above_0(option: str, amount: str) -> None:
    result = CliRunner().invoke(command, ["artifact", option, amount])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output
