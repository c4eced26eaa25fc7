"""How long counting tokens takes: texts written from a seed, a tokenizer trained on them, counted without the cache.

    python -m benchmarks.count_tokens [--megabytes 100] [--times 3] [--kind text|messages|tokens] [--folder FOLDER]

The words are drawn by Zipf's law from a vocabulary of made-up ones, so that the text has the letters, word lengths and
repetitions of prose; the tokenizer is a byte-level BPE of 32,000 tokens with the pre-tokenizer of Qwen2.5's, trained on
the first tenth. Counting starts a process of its own each time: its imports and the reading of the file are in the
seconds shown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

SEED = 0
VOCABULARY = 60_000
BPE_TOKENS = 32_000
TRAINING_SHARE = 0.1
ITEMS_OF_COUNTS = 1_000_000
# Of GPT-4's cl100k and, but for digits, Qwen2.5's: what splits text before pairs are merged.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
COUNT = (
    "import sys; from raysweep.data import read_items; "
    "items = read_items(sys.argv[1], tokenizer=sys.argv[2], use_cache=False); "
    "print(len(items), items.total_tokens, items.total_loss_tokens)"
)


def vocabulary(rng: np.random.Generator) -> np.ndarray:
    """Return made-up words of syllables, the short ones first, as the frequent words of a language are."""
    syllables = np.array([c + v + e for c in "bcdfghlmnprstvw" for v in "aeiou" for e in ("", "n", "r", "s", "t")])
    counts = 1 + rng.poisson(np.linspace(0.2, 2.2, VOCABULARY))
    return np.array(["".join(rng.choice(syllables, n)) for n in counts], dtype=object)


def texts(megabytes: float) -> Iterator[str]:
    """Yield texts of log-normal length, some 300 words in the middle, until they hold that many megabytes."""
    rng = np.random.default_rng(SEED)
    words = vocabulary(rng)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    ends = np.cumsum(weights / weights.sum())
    left_bytes = megabytes * 1e6
    while left_bytes > 0:
        count = max(3, int(rng.lognormal(np.log(300), 0.9)))
        chosen = words[np.minimum(np.searchsorted(ends, rng.random(count)), VOCABULARY - 1)]
        for place in range(11, count, 12):
            chosen[place] += str(rng.choice([".", ",", ".\n", f" {rng.integers(3000)}"]))
        text = " ".join(chosen)
        left_bytes -= len(text)
        yield text


def write_data(folder: Path, megabytes: float, kind: str) -> Path:
    """Write the data as JSONL; conversations are two texts long, half of them the assistant's."""
    path = folder / f"{kind}.jsonl"
    with path.open("w") as file:
        if kind == "tokens":
            rng = np.random.default_rng(SEED)
            tokens = np.clip(rng.lognormal(6.3, 0.9, ITEMS_OF_COUNTS), 8, 32_000).astype(int)
            file.writelines(f'{{"tokens": {n}, "loss_tokens": {n // 2}}}\n' for n in tokens.tolist())
            return path
        for text in texts(megabytes):
            half = len(text) // 2
            talk = [{"role": "user", "content": text[:half]}, {"role": "assistant", "content": text[half:]}]
            file.write(json.dumps({"text": text} if kind == "text" else {"messages": talk}) + "\n")
    return path


def write_tokenizer(folder: Path, megabytes: float) -> Path:
    """Train a byte-level BPE on the first of the texts; save it as transformers reads it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=BPE_TOKENS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(megabytes * TRAINING_SHARE), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    target = folder / "tokenizer"
    target.mkdir(exist_ok=True)
    tokenizer.save(str(target / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "additional_special_tokens": ["<|im_start|>", "<|endoftext|>"],
        "chat_template": CHAT_TEMPLATE,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


def timed(data: Path, tokenizer: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of one count; what was counted goes to stdout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", COUNT, str(data), str(tokenizer)], check=True)
    wall_seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Write data and tokenizer, count several times, print each time and the median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--kind", choices=("text", "messages", "tokens"), default="text")
    parser.add_argument("--folder", type=Path, help="where data and tokenizer stay; by default they go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder = given.folder or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        data = write_data(folder, given.megabytes, given.kind)
        tokenizer = write_tokenizer(folder, given.megabytes)
        size = data.stat().st_size / 1e6
        click.echo(f"{data.name}: {size:.1f} MB on {os.cpu_count()} cores; items, tokens, loss-bearing tokens:")
        walls = []
        for _ in range(given.times):
            wall_seconds, cpu_seconds = timed(data, tokenizer)
            walls.append(wall_seconds)
            click.echo(f"{wall_seconds:.1f} s, {cpu_seconds:.1f} CPU s")
    click.echo(f"median {statistics.median(walls):.1f} s, {size / statistics.median(walls):.1f} MB a second")


if __name__ == "__main__":
    main()
