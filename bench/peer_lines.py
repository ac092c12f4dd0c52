# How a peer of bench/cpu_limits that is written in Python is asked. It prints `ready VERSION`, then
# answers each line `what length threads repetitions sequences` with the seconds of one call, until
# its input ends; `what` is a number of heads, or `layer`. A sequence has rows of its own.
import collections
import sys
import time

RANK, ROPE = 512, 64
SCALE = 0.0417

Case = collections.namedtuple("Case", "what length sequences")


def seconds(call, repetitions):
    """The best of some calls."""
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def answer(version, set_threads, forms_of):
    """Answers with the fastest of a case's forms, forms_of(case): functions without arguments."""
    print("ready", version, flush=True)
    known, forms = None, []
    for line in sys.stdin:
        what, *numbers = line.split()
        length, threads, repetitions, sequences = map(int, numbers)
        set_threads(threads)
        if (case := Case(what, length, sequences)) != known:
            forms = []  # gives its memory back first
            forms, known = forms_of(case), case
            warm = [seconds(form, 2) for form in forms]
            forms = [form for form, took in zip(forms, warm) if took < 1.5 * min(warm)]
        print(min(seconds(form, repetitions) for form in forms), flush=True)
