# The demo of deploy/demo.sh: SmolLM2 continues a prompt with its cache in a tier of 4 workers, gets
# more to read and goes on, and then does the same once more alone. Called with the program's path
# and, if wanted, a prompt.
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import tributary  # noqa: E402
from tributary.runner import (Llama, Prefilled, TierDecoder, generate_alone,  # noqa: E402
                              make_tokenizer, smollm2_path)

WORKERS = 4
NEW_TOKENS = 64
# Enough for a leaf on each worker, however short the prompt is.
LEAST_TOKENS = 200
START_LIMIT_S = 90
PROMPT = """The lighthouse stood at the end of a long spit of sand, and nobody in the village \
could remember a time without it. Its keeper was an old woman named Marta, who had learned the work \
from her father. Every evening, an hour before sunset, she climbed the hundred and twelve steps, \
cleaned the glass, filled the lamp, and wrote the weather into a thick blue book. The book held the \
wind, the tide, the ships that had passed, and now and then a sentence that had nothing to do with \
any of them.

In the winter of that year the storms came early. The fishermen pulled their boats up \
onto the grass, and the road to the town was under water for nine days. On the tenth day a boy came \
along the beach with a letter. It was from the harbour office, and it said that the lamp would be \
replaced by an electric light that needed no keeper. A machine would turn it on, a machine would turn \
it off, and a machine would write the weather into a book that nobody would ever open.

Marta read the letter twice. Then she put it between two pages of the blue book, made tea for the boy, \
and asked him whether he could count to one hundred and twelve. He said that he could. She took him by \
the hand and led him up the stairs, and on the way she told him"""
# What it gets to read then: the next turn.
NEXT = """

Many years later, when people sat together in the evening and somebody wanted to know how it had all \
come about, there was always one who told it from the beginning, and all the others listened as if \
they had never heard it before. And at the end of the story, when it had become quiet, somebody said:"""
NEXT_TOKENS = 32
# The workers' colours, if the terminal has colours.
COLOURS = [36, 33, 35, 32]
TERMINAL = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
WIDTH = min(shutil.get_terminal_size((100, 24)).columns, 100)


def paint(text, *codes):
    return f"\033[{';'.join(map(str, codes))}m{text}\033[0m" if TERMINAL else str(text)


def line(name, text=""):
    print(f"  {paint(f'{name:<9}', 2)}{text}", flush=True)


class Paragraph:
    """Words that appear one by one, wrapped at the terminal's width."""

    def __init__(self):
        self.column = 0

    def write(self, text, *codes):
        for part in re.split(r"(\n|(?<=\S)(?=\s))", text):
            if part == "\n" or self.column + len(part) > WIDTH - 4:
                print()
                self.column = 0
                part = part.strip("\n ")
            if part:
                print(("  " if self.column == 0 else "") + paint(part, *codes), end="", flush=True)
                self.column += len(part)


class Tier:
    """`tributary up`, for the length of a block."""

    def __init__(self, program, model):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        shape = folder / "config.json"
        shape.write_text(json.dumps(model.config()))
        self.log = folder / "up.log"
        # Leaves of a page, so that a prompt of some hundred tokens lies on every worker.
        self.flags = ["--workers", str(WORKERS), "--rows", "f32", "--query", "f32",
                      "--leaf-tokens", "64", "--kv-gib", "0.25"]
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                [program, "up", "--listen", "127.0.0.1:0", "--shape", shape, *self.flags],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        end = time.monotonic() + START_LIMIT_S
        while "\nready with " not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                sys.exit(f"demo: the tier did not start:\n{self.text}")
            time.sleep(0.05)
        return re.search(r"^service +(\S+)$", self.log.read_text(), re.MULTILINE)[1]

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.text = self.log.read_text()
        self.folder.cleanup()


class Timed:
    """A step's calls of the tier, and the seconds that they took."""

    def __init__(self, client):
        self.client, self.seconds, self.calls = client, 0.0, 0

    def step(self, sequences, tokens):
        self.inner = self.client.step(sequences, tokens=tokens)
        return self

    def __enter__(self):
        self.inner.__enter__()
        return self

    def __exit__(self, *raised):
        return self.time(self.inner.__exit__, *raised)

    def accept(self, tokens):
        self.inner.accept(tokens)

    def attend(self, *arguments):
        self.calls += 1
        return self.time(self.inner.attend, *arguments)

    def time(self, call, *arguments):
        begin = time.perf_counter()
        result = call(*arguments)
        self.seconds += time.perf_counter() - begin
        return result


def show_workers(name, sequence, tokens):
    """Which worker holds which tokens, leaf by leaf."""
    for worker in range(WORKERS):
        held = [(begin, min(end, tokens)) for begin, end, rank in sequence.extents
                if rank == worker and begin < tokens]
        count = sum(end - begin for begin, end in held)
        bar = paint("█" * round(40 * count / tokens), COLOURS[worker])
        where = ", ".join(f"{begin}..{end - 1}" for begin, end in held)
        line(name if worker == 0 else "", f"worker {worker}  {bar} {count} tokens"
             + (f" ({where})" if where else ""))


def speak(model, tokenizer, decoder, limit, page):
    """The new tokens, to the model's end or to the limit; shown as they come."""
    tokens, shown = [], ""
    for new in decoder.steps(limit):
        tokens += new
        if new[0] == model.end_token:
            break
        text = tokenizer.decode(tokens)
        if not text.endswith("\ufffd"):  # the middle of a character
            page.write(text[len(shown):], 1)
            shown = text
    return tokens


def demonstrate(program, prompt):
    print(paint("\nA model speaks through a decode tier\n", 1))
    model = Llama(smollm2_path())
    tokenizer = make_tokenizer(model)
    heads = model.attention
    line("model", f"SmolLM2-135M-Instruct: {model.layers} layers, {heads.heads} heads over "
         f"{heads.kv_heads} KV heads of {heads.head_dim}")
    line("as MLA", f"rows of {heads.width} + {heads.width}: V of all KV heads, then K; exact")
    ids = tokenizer.encode(prompt).ids
    tier = Tier(program, model)
    with tier as url:
        line("tier", f"{WORKERS} CPU workers at {url}, rows and queries fp32")
        begin = time.perf_counter()
        prefilled = Prefilled(model, ids)
        prefill_s = time.perf_counter() - begin
        client = tributary.Client(url, timeout=60.0)
        limit = max(NEW_TOKENS, LEAST_TOKENS - len(ids))
        with client.admit(len(ids), limit, spread="all") as sequence:
            begin = time.perf_counter()
            prefilled.push(sequence)
            pushed_s = time.perf_counter() - begin
            size = sum(rows.nbytes for rows in prefilled.rows) / 2**20
            line("prompt", f"{len(ids)} tokens, {size:.1f} MiB of rows pushed in {pushed_s:.2f} s")
            show_workers("cache by", sequence, len(ids))
            print()
            page = Paragraph()
            page.write(prompt, 2)
            timed = Timed(client)
            decoder = TierDecoder(model, timed, [sequence], [prefilled.first_token])
            begin = time.perf_counter()
            tokens = speak(model, tokenizer, decoder, limit, page)
            decode_s = time.perf_counter() - begin
            steps = max(len(tokens) - 1, 1)
            print("\n")
            sequence.refresh()
            show_workers("now by", sequence, sequence.length)
            line("steps", f"{steps} of {1e3 * decode_s / steps:.0f} ms: the tier "
                 f"{1e3 * timed.seconds / steps:.0f} ms ({model.layers} layers of "
                 f"{1e3 * timed.seconds / max(timed.calls, 1):.2f} ms), the model's own "
                 f"arithmetic the rest\n")
            # The last token has no row yet.
            more = [*tokens[-1:], *tokenizer.encode(NEXT).ids]
            begin = time.perf_counter()
            turn = Prefilled(model, more, past=sequence)
            there = sequence.length
            with sequence.fork(max_new_tokens=NEXT_TOKENS, prompt_tokens=there + len(more)) as fork:
                turn.push(fork)
                turn_s = time.perf_counter() - begin
                page.column = 0
                page.write(NEXT.lstrip(), 2)
                decoder = TierDecoder(model, timed, [fork], [turn.first_token])
                answer = speak(model, tokenizer, decoder, NEXT_TOKENS, page)
    print("\n")
    whole = [*ids, *tokens, *tokenizer.encode(NEXT).ids]
    begin = time.perf_counter()
    again = Prefilled(model, whole)
    again_s = time.perf_counter() - begin
    line("turn 2", f"{there} tokens were there: their rows came back, {len(more)} new ones were pushed, "
         f"in {turn_s:.2f} s;")
    line("", f"to read all {len(whole)} again takes {again_s:.2f} s")
    begin = time.perf_counter()
    alone = generate_alone(model, ids, len(tokens))
    alone_s = max(time.perf_counter() - begin - prefill_s, 1e-9)
    alone += generate_alone(model, whole, len(answer))
    tokens += answer
    line("speed", f"{steps / decode_s:.1f} tokens/s through the tier, {steps / alone_s:.1f} with the "
         "cache in the model's own process (prompts not counted)")
    if alone != tokens:
        at = next(i for i, (a, b) in enumerate(zip(alone, tokens)) if a != b)
        line("", paint(f"other tokens from number {at} on", 1, 31))
        return 1
    line("", paint(f"same tokens: {len(tokens)} of {len(tokens)}", 1, 32) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(demonstrate(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else PROMPT))
    except KeyboardInterrupt:
        sys.exit(130)
