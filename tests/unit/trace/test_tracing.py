"""What a trace sees, what it refuses, and where a program is split."""

from __future__ import annotations

import pytest
import torch

from raysweep.errors import NotForecastError
from raysweep.memory.conditions import Conditions
from raysweep.memory.heap import Placement
from raysweep.memory.program import Category, SegmentName
from raysweep.memory.replay import Replayer
from raysweep.setting import (
    AdapterDtype,
    AdapterSetting,
    Attention,
    Checkpointing,
    Loss,
    StepSetting,
    Weights,
)
from raysweep.trace.build import model_program
from raysweep.trace.recorder import CUBLASLT_WORKSPACE_BYTES
from raysweep.trace.tracing import Recording, trace

RANK_8 = AdapterSetting(rank=8)


def peaks(config, setting: StepSetting, length: int):
    return Replayer(model_program("tiny", config, setting, [length])).steady(length, accumulation=setting.accumulation)


def op_of(recording: Recording, number: int) -> str:
    return recording.labels[recording.label[number]].op


# --- components


def test_components_hold_what_the_step_says(tiny):
    config = tiny()
    step = StepSetting(adapter=RANK_8, checkpointing=Checkpointing.NONE)
    parts = peaks(config, step, 300).components_bytes
    width, inner, kept = 256, 768, 128
    layer = 2 * width * width + 2 * width * kept + 3 * width * inner
    weights = 2 * (2 * 3000 * width + 2 * layer)
    assert weights <= parts[Category.WEIGHTS] <= 1.01 * weights + 64 * 512
    trained = 2 * 8 * (2 * 2 * width + 2 * (width + kept) + 3 * (width + inner))
    assert parts[Category.ADAPTER] == pytest.approx(4 * trained, rel=0.02)
    assert parts[Category.OPTIMIZER] == pytest.approx(2 * 4 * trained, rel=0.02)
    assert parts[Category.WORKSPACE] == 2 * 32 * 2**20


def test_layers_with_a_bias_take_a_workspace_more_in_each_thread(tiny):
    biased, plain = (
        peaks(tiny(attention_bias=bias), StepSetting(adapter=RANK_8, checkpointing=Checkpointing.GPU), 300)
        for bias in (True, False)
    )
    more = biased.components_bytes[Category.WORKSPACE] - plain.components_bytes[Category.WORKSPACE]
    assert more == 2 * CUBLASLT_WORKSPACE_BYTES


def test_where_no_layer_runs_again_autograds_thread_adds_no_bias(tiny):
    step = StepSetting(adapter=RANK_8, checkpointing=Checkpointing.NONE)
    parts = peaks(tiny(attention_bias=True), step, 300).components_bytes
    assert parts[Category.WORKSPACE] == 2 * 32 * 2**20 + CUBLASLT_WORKSPACE_BYTES


def test_a_warm_process_has_the_workspaces_already(tiny):
    step = StepSetting(adapter=RANK_8, checkpointing=Checkpointing.GPU)
    replayer = Replayer(model_program("tiny", tiny(attention_bias=True), step, [300]))
    cold, warm = (
        replayer.steady(300, accumulation=1, conditions=Conditions(warm_process=warm)).components_bytes
        for warm in (False, True)
    )
    # The events that stand for them are still played, of the least size there is.
    assert warm[Category.WORKSPACE] == cold[Category.WORKSPACE] + 4 * 512


def test_the_math_path_adds_its_mask_to_the_scores_in_place(tiny):
    step = StepSetting(adapter=RANK_8, weights=Weights.FP32, checkpointing=Checkpointing.NONE)
    recording = trace(tiny(), step, 100, whole=False)
    scores = 4 * 8 * 100 * 100
    events = recording.segments[SegmentName.FIRST_MICRO].events
    made = [(op_of(recording, n), int(recording.nbytes[n])) for n in events if n >= 0]
    made = made[: next(i for i, (op, _) in enumerate(made) if op == "_log_softmax")]
    assert [op for op, nbytes in made if nbytes == scores] == ["bmm", "softmax"] * 2
    # The softmax looks for rows of which all is masked: a byte a score.
    assert [op for op, nbytes in made if nbytes == scores // 4].count("empty_like") == 2


def test_dropout_keeps_a_byte_an_element(tiny):
    without = StepSetting(adapter=RANK_8, checkpointing=Checkpointing.NONE)
    dropping = StepSetting(adapter=AdapterSetting(rank=8, dropout=0.1), checkpointing=Checkpointing.NONE)
    length = 1024
    more = [peaks(tiny(), s, length).components_bytes[Category.ACTIVATIONS] for s in (without, dropping)]
    # A layer's seven adapted projections each keep a mask of their input; at the peak the last layer's widest is gone.
    inputs = 6 * 256 + 768
    assert more[1] - more[0] == length * (2 * inputs - 768)


def test_dropout_takes_its_mask_before_its_output(tiny):
    step = StepSetting(adapter=AdapterSetting(rank=8, dropout=0.1), checkpointing=Checkpointing.NONE)
    recording = trace(tiny(), step, 100, whole=False)
    events = recording.segments[SegmentName.FIRST_MICRO].events
    made = [int(recording.nbytes[n]) for n in events if n >= 0 and op_of(recording, n) == "native_dropout"]
    # The output of an adapter in fp32 has four bytes an element.
    assert [4 * mask for mask in made[::2]] == made[1::2]


def test_the_tokens_are_the_micro_steps_own(tiny):
    program = model_program("tiny", tiny(), StepSetting(adapter=RANK_8), [64, 2000])
    for name in (SegmentName.FIRST_MICRO, SegmentName.MICRO):
        (part,) = program.pieces[0].segments[name].parts
        phases = {program.labels[i].phase for i in part.label}
        assert phases == {"forward", "loss", "backward"}


def test_resident_copies_add_their_own_size(tiny):
    one, three = (peaks(tiny(), StepSetting(adapter=AdapterSetting(rank=8, resident_copies=n)), 200) for n in (1, 3))
    assert three.components_bytes[Category.ADAPTER] == pytest.approx(
        2 * one.components_bytes[Category.ADAPTER], rel=0.01
    )


def test_what_a_copy_adds_to_the_allocated_peak_hangs_on_addresses(tiny):
    """The copy is one adapter to the byte; how far blocks exceed what tensors asked for hangs on where segments lie."""
    config = tiny(
        vocab_size=32_000, hidden_size=768, intermediate_size=2_048, num_hidden_layers=8, num_attention_heads=12
    )
    found = []
    for copies in (1, 0):
        adapter = AdapterSetting(rank=256, dropout=0.05, resident_copies=copies)
        step = StepSetting(adapter=adapter, checkpointing=Checkpointing.NONE, loss=Loss.FULL)
        replayer = Replayer(model_program("small", config, step, [512]))
        orders = [Conditions(placement=Placement.RANDOM, seed=seed) for seed in range(1, 51)]
        found.append([replayer.steady(512, accumulation=1, conditions=order) for order in orders])
    copied, alone = found
    adapters = {
        a.components_bytes[Category.ADAPTER] - b.components_bytes[Category.ADAPTER] for a in copied for b in alone
    }
    added = {a.peak_allocated_bytes - b.peak_allocated_bytes for a in copied for b in alone}
    assert adapters == {111_149_056}
    # What an H200 measured is 3.5 MiB more than the adapter, and among what the orders of segments give.
    assert 114_819_072 in added
    assert min(added) < 111_149_056


def test_a_half_precision_adapter_halves_its_bytes(tiny):
    full, half = (
        peaks(tiny(), StepSetting(adapter=AdapterSetting(rank=64, dtype=dtype)), 200)
        for dtype in (AdapterDtype.FP32, AdapterDtype.BF16)
    )
    assert half.components_bytes[Category.ADAPTER] == pytest.approx(
        full.components_bytes[Category.ADAPTER] / 2, rel=0.01
    )


def test_the_peak_has_a_moment(tiny):
    moment = peaks(tiny(), StepSetting(adapter=RANK_8), 500).peak_moment
    assert moment.phase in {"forward", "loss", "backward", "optimizer"}
    assert moment.op


# --- kernels


def test_grouped_heads_in_fp32_take_the_math_path(tiny):
    grouped = model_program("tiny", tiny(), StepSetting(weights=Weights.FP32), [64, 700])
    assert grouped.kernels["attention"] == "sdpa: math path"
    assert Replayer(grouped).steady(500, accumulation=1).runs


@pytest.mark.parametrize(
    ("setting", "heads", "kernel"),
    [
        (StepSetting(), 4, "sdpa: fused kernel"),
        (StepSetting(weights=Weights.FP32), 8, "sdpa: fused kernel"),
        (StepSetting(attention=Attention.FLASH), 4, "flash-attn"),
        (StepSetting(attention=Attention.EAGER), 4, "eager"),
    ],
)
def test_the_attention_kernel_is_named(tiny, setting, heads, kernel):
    assert model_program("tiny", tiny(num_key_value_heads=heads), setting, [32]).kernels["attention"] == kernel


def test_eager_attention_keeps_scores_of_length_squared(tiny):
    setting = StepSetting(adapter=RANK_8, checkpointing=Checkpointing.NONE, attention=Attention.EAGER)
    program = model_program("tiny", tiny(), setting, [64, 2000])
    squares = {float(c) for part in program.pieces[0].segments[SegmentName.MICRO].parts for c in part.size[:, 3]}
    # Eight heads of scores, in bf16 and, for the softmax, in fp32.
    assert {8 * 2.0, 8 * 4.0} <= squares


def test_fused_attention_keeps_none(tiny):
    program = model_program("tiny", tiny(), StepSetting(adapter=RANK_8), [64, 2000])
    assert all((part.size[:, 3] == 0).all() for part in program.pieces[0].segments[SegmentName.MICRO].parts)


# --- host memory


def test_host_checkpoints_are_a_layers_input_for_every_layer(tiny):
    setting = StepSetting(adapter=RANK_8, checkpointing=Checkpointing.CPU, micro_batch=2)
    piece = model_program("tiny", tiny(), setting, [64, 1000]).pieces[0]
    assert piece.host_blocks == 2
    assert piece.host_block.tolist() == [0, 2 * 256 * 2, 0, 0, 0]


def test_checkpoints_on_the_device_take_no_host_memory(tiny):
    piece = model_program("tiny", tiny(), StepSetting(adapter=RANK_8), [64, 1000]).pieces[0]
    assert piece.host_blocks == 0
    assert not piece.host_block.any()


# --- pieces


def test_one_piece_covers_every_length_of_a_full_loss(tiny):
    (piece,) = model_program("tiny", tiny(), StepSetting(adapter=RANK_8), [3, 3000]).pieces
    assert (piece.first_tokens, piece.last_tokens) == (3, 3000)


def test_a_chunked_loss_has_a_piece_of_one_chunk_and_one_of_more(tiny):
    setting = StepSetting(adapter=RANK_8, loss=Loss.CHUNKED, loss_chunk_tokens=512, micro_batch=2)
    pieces = model_program("tiny", tiny(), setting, [3, 3000]).pieces
    assert [(p.first_tokens, p.last_tokens) for p in pieces] == [(3, 257), (258, 3000)]


def test_a_single_target_token_stands_alone_where_it_needs_no_copy(tiny):
    setting = StepSetting(adapter=RANK_8, loss=Loss.CHUNKED, loss_chunk_tokens=512, micro_batch=2)
    pieces = model_program("tiny", tiny(), setting, [2, 200]).pieces
    assert [(p.first_tokens, p.last_tokens) for p in pieces] == [(2, 2), (3, 200)]


def test_where_a_model_branches_on_the_length_its_range_is_split(tiny, monkeypatch):
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.LlamaMLP.forward

    def branching(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 300:
            x = x * 2
        return plain(self, x)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", branching)
    setting = StepSetting(adapter=RANK_8)
    program = model_program("tiny", tiny(num_hidden_layers=1), setting, [200, 400])
    assert len(program.pieces) > 1
    assert [p.first_tokens for p in program.pieces[1:]] == [p.last_tokens + 1 for p in program.pieces[:-1]]
    assert 300 in {p.last_tokens for p in program.pieces}
    for length in (299, 300, 301, 390):
        found = Replayer(program).steady(length, accumulation=1)
        assert found.peak_reserved_bytes == peaks(tiny(num_hidden_layers=1), setting, length).peak_reserved_bytes
        assert found.peak_allocated_bytes == peaks(tiny(num_hidden_layers=1), setting, length).peak_allocated_bytes


def test_traces_side_by_side_make_the_same_program(tiny):
    from concurrent.futures import ThreadPoolExecutor

    setting = StepSetting(adapter=RANK_8)
    with ThreadPoolExecutor(1) as executor:
        other = model_program("tiny", tiny(), setting, [3, 900], executor=executor)
    alone = model_program("tiny", tiny(), setting, [3, 900])
    assert Replayer(other).steady(777, accumulation=1) == Replayer(alone).steady(777, accumulation=1)


# --- refusals


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        (StepSetting(weights=Weights.INT8), "weights: int8"),
        (StepSetting(loss=Loss.LIGER), "loss: liger"),
        (StepSetting(autocast=True), "autocast: true"),
    ],
)
def test_what_is_not_modelled_is_named_with_a_way_out(tiny, setting, named):
    with pytest.raises(NotForecastError, match=named) as refused:
        model_program("tiny", tiny(), setting, [100])
    assert "raysweep sweep" in str(refused.value)


def test_linear_attention_is_named(tiny):
    config = tiny()
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(NotForecastError, match="linear-attention"):
        model_program("tiny", config, StepSetting(), [100])


def test_a_model_that_keeps_tensors_between_steps_is_refused(tiny, monkeypatch):
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.LlamaMLP.forward
    kept = []

    def hoarding(self, x: torch.Tensor) -> torch.Tensor:
        kept.append(x.detach() + 1)
        return plain(self, x)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", hoarding)
    with pytest.raises(NotForecastError, match="nothing but gradients"):
        model_program("tiny", tiny(), StepSetting(adapter=RANK_8, accumulation=2), [100])


def test_a_model_that_replaces_a_tensor_at_every_step_is_refused(tiny, monkeypatch):
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.LlamaMLP.forward
    last = []

    def replacing(self, x: torch.Tensor) -> torch.Tensor:
        last[:] = [x.detach() + 1]
        return plain(self, x)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", replacing)
    with pytest.raises(NotForecastError, match="nothing but gradients"):
        model_program("tiny", tiny(), StepSetting(adapter=RANK_8), [100])


# --- what is traced once for all


def test_a_first_micro_step_like_no_other_is_seen_at_every_length(tiny, monkeypatch):
    from transformers.models.llama import modeling_llama

    plain = modeling_llama.LlamaMLP.forward

    def warming(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's first call in a process takes a scratch buffer, and lets it go."""
        if not getattr(self, "warm", False):
            self.warm = True
            x.new_empty(x.shape[1], 1 << 17)
        return plain(self, x)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", warming)
    setting = StepSetting(adapter=RANK_8)
    program = model_program("tiny", tiny(), setting, [100, 900])
    first, later = (program.pieces[0].segments[name].parts[0] for name in (SegmentName.FIRST_MICRO, SegmentName.MICRO))
    # A buffer taken and freed in each of two layers, and cuBLAS's two workspaces, which stay.
    assert len(first.op) == len(later.op) + 2 * 2 + 2
    found = Replayer(program).steady(555, accumulation=1)
    expected = peaks(tiny(), setting, 555)
    assert found.peak_allocated_bytes == expected.peak_allocated_bytes
    assert found.peak_reserved_bytes == expected.peak_reserved_bytes


def test_lengths_traced_in_part_make_the_program_of_whole_traces(tiny, monkeypatch):
    setting = StepSetting(adapter=RANK_8, accumulation=2, loss=Loss.CHUNKED, loss_chunk_tokens=256)
    part = model_program("tiny", tiny(), setting, [3, 1200])
    monkeypatch.setattr("raysweep.trace.build.is_alike", lambda _: False)
    whole = model_program("tiny", tiny(), setting, [3, 1200])
    for length in (5, 300, 1111):
        assert Replayer(part).run([length] * 8, accumulation=2) == Replayer(whole).run([length] * 8, accumulation=2)
