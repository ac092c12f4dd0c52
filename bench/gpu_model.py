#!/usr/bin/env python3
# A cycle model of decode attention on an H200, by the kernels' sources, without a GPU.
"""A cycle model of decode attention on an H200.

Prints the time of one layer in the fast and in the canonical order of merges, as it was before
merges of trees, merges where attention computes, a lazy peak and queries in registers, and as it
is; which resource binds; and what else was thought of. Two figures a column: the better and the
worse end of what is not known without a device. The first measurement (bench/gpu_check.sh)
corrects the constants, which are all in gpu_model_constants.py, with their sources.

The many-rows kernel is simulated page by page (gpu_model_block.py). The few-rows kernel and the
merges are counts of bytes.
"""
import argparse
import heapq
import math
import multiprocessing
import random
import statistics

from gpu_model_block import Block, Form
from gpu_model_constants import (BETTER, FIXED_PAGES, L2_LATENCY, L2_PORT, LATENCY, LATENT,
                                 LEAF_PAGES, MEMORY, MULTIPROCESSORS, PAGE, PAGE_BYTES, RANK,
                                 SHARED, WORSE)

BEFORE = Form()  # of 2026's first version
NOW = Form(rescale="lazy", query_tiles=1)


def cost(units):
    return sum(units) + FIXED_PAGES * len(units)


def deal(chains, parts):
    """Units of every part in the canonical order, the busiest first: the longest chain goes first,
    to the part with the least so far (schedule.cc)."""
    loads = [(0, part, []) for part in range(parts)]
    for chain in sorted(chains, key=cost, reverse=True):
        load, part, units = heapq.heappop(loads)
        heapq.heappush(loads, (load + cost(chain), part, units + list(chain)))
    return [units for _, _, units in sorted(loads, reverse=True)]


def drained(loads, rate, most):
    """Seconds in which parts read so many bytes each, at `rate` together and `most` one: what those
    that have ended no longer need is for the rest."""
    time, read = 0, 0
    for done, load in enumerate(sorted(loads)):
        time += (load - read) / min(rate / (len(loads) - done), most)
        read = load
    return time


def fast_deal(lengths, parts):
    """The same of FlashMLA's order: any part takes up to the mean and FIXED_PAGES."""
    payload = math.ceil(sum(pages + FIXED_PAGES for pages in lengths) / parts) + FIXED_PAGES
    waiting, loads = list(reversed(lengths)), []
    for _ in range(parts):
        room, units = payload, []
        while waiting and room > FIXED_PAGES:
            units.append(min(waiting[-1], room - FIXED_PAGES))
            room -= units[-1] + FIXED_PAGES
            waiting[-1] -= units[-1]
            if waiting[-1] == 0:
                waiting.pop()
        loads.append(units)
    return sorted(loads, key=sum, reverse=True)


class Simulations:
    """Blocks that were simulated: cycles, and what was busy."""
    known = {}

    @classmethod
    def of(cls, units, feeds, form):
        key = (tuple(units), tuple(round(feed, 2) for feed in feeds), form)
        if key not in cls.known:
            block = Block(units, feeds, form)
            cycles = block.run()
            cls.known[key] = (cycles, {"tensor cores": block.busy["tensor"] / cycles,
                                       "shared memory": block.busy["shared"] / cycles,
                                       "memory": sum(pages * PAGE_BYTES / feed for pages, feed
                                                     in zip(units, feeds)) / cycles})
        return cls.known[key]


class Model:
    def __init__(self, constants, heads, batch, length, form=NOW, near=L2_LATENCY,
                 leaf=LEAF_PAGES):
        """length: of all sequences, or a list of one each."""
        self.c, self.form, self.near = constants, form, near
        self.start = constants["launch"]
        self.heads, self.batch = heads, batch
        lengths = length if isinstance(length, list) else [length] * batch
        self.lengths = [math.ceil(one / PAGE) for one in lengths]
        # Pages of the leaves of every sequence.
        self.sequences = [[min(leaf, pages - at) for at in range(0, pages, leaf)]
                          for pages in self.lengths]
        self.states = sum(map(len, self.sequences))
        self.many = heads > 16
        self.rows = min(64, heads)
        self.cluster = 2 if heads > 64 else 1
        self.parts = MULTIPROCESSORS // self.cluster
        self.record = heads * (RANK + 1) * 4
        self.busy = {"memory": 1.0}

    def seconds_of_bytes(self, count):
        return count / (MEMORY * self.c["memory"])

    def page_bytes(self, states):
        rows = sum(self.lengths) * PAGE
        return rows * LATENT * 2 + self.batch * self.heads * LATENT * 2 + states * self.record

    def attend(self, parts, states, extra=0):
        """parts: the units of each, the busiest first. extra: cycles of it besides its units."""
        memory = self.seconds_of_bytes(self.page_bytes(states))
        rate = MEMORY * self.c["memory"]
        if not self.many:
            # A tile of 36 KiB takes 150 KB of reads of shared memory with 16 rows, 270 with 32:
            # attend/README.md. The last states of all parts are written when nothing is read any
            # more.
            most = PAGE_BYTES / 2 / ((30 + 7.5 * self.rows) * 1e3 / SHARED) * self.c["clock"]
            pages = drained([sum(units) * PAGE_BYTES for units in parts], rate, most)
            tail = self.rows * (RANK + 1) * 4 / L2_PORT + LATENCY
            return max(memory, pages) + (tail + extra) / self.c["clock"] + self.c["launch"]
        # What parts that have ended no longer read is for the rest.
        busiest = parts[0]
        feeds = [rate / self.c["clock"] / sum(len(units) > turn for units in parts)
                 for turn in range(len(busiest))]
        feeds = [min(feed, L2_PORT) for feed in feeds]
        cycles, self.busy = Simulations.of(busiest, feeds, self.form)
        return max((cycles + extra) / self.c["clock"], memory) + self.c["launch"]

    def merge(self, trees, inputs, turns, warps):
        """A launch: a warp a head, so many of them on a multiprocessor, waits for memory for its
        tree, then in every turn."""
        waves = math.ceil(trees * self.heads / (warps * MULTIPROCESSORS))
        waits = waves * (1 + turns) * LATENCY / self.c["clock"]
        moved = trees * (inputs + 1) * self.record
        return max(self.seconds_of_bytes(moved), waits) + self.start

    def fast(self):
        parts = fast_deal(self.lengths, self.parts)
        # Every part but the last splits a sequence: two pieces more, merged in one launch.
        return self.attend(parts, self.parts + self.batch) + self.merge(self.parts, 2, 1, 24)

    def leaves_alone(self):
        chains = [[leaf] for leaves in self.sequences for leaf in leaves]
        return self.attend(deal(chains, self.parts), self.states)

    def levels(self):
        """A launch a level; a turn is two loads of 4 bytes a lane, then a store: 16 of them."""
        time, nodes = self.leaves_alone(), [len(leaves) for leaves in self.sequences]
        while max(nodes) > 1:
            time += self.merge(sum(count // 2 for count in nodes), 2, 16, 64)
            nodes = [count - count // 2 for count in nodes]
        return time

    def rest(self, nodes):
        """Merges of so many states of each sequence: up to eight states a launch; a turn is eight
        loads of 16 bytes a lane."""
        time = 0
        while max(nodes) > 1:
            trees = sum(math.ceil(count / 8) for count in nodes if count > 1)
            slots = min(8, max(nodes))
            time += self.merge(trees, sum(nodes) / trees, slots / 2, 24)
            nodes = [math.ceil(count / 8) for count in nodes]
        return time

    def trees(self):
        return self.leaves_alone() + self.rest([len(leaves) for leaves in self.sequences])

    def fused(self):
        """The best of chains of one, two, four or eight leaves that a block merges itself, out of
        L2, by its eight warps, with launches for the rest (fused_order.cc)."""
        return min(self.chained(slots) for slots in (1, 2, 4, 8)
                   if slots == 1 or slots / 2 < max(map(len, self.sequences)))

    def chained(self, slots):
        chains = [leaves[at:at + slots] for leaves in self.sequences
                  for at in range(0, len(leaves), slots)]
        parts = deal(chains, self.parts)
        trees = len(parts[0]) / slots if slots > 1 else 0
        waits = self.rows / 8 * (1 + slots / 2) * self.near
        moved = (slots + 1) * self.rows * (RANK + 1) * 4 / L2_PORT
        made = sum(len(chain) > 1 for chain in chains)
        return (self.attend(parts, self.states + made, trees * max(waits, moved)) +
                self.rest([math.ceil(len(leaves) / slots) for leaves in self.sequences]))


def both_ends(order, heads, batch, length, **changes):
    models = [Model(constants, heads, batch, length, **changes) for constants in (BETTER, WORSE)]
    return [order(model) * 1e6 for model in models], models[1].busy


def text(ends):
    return f"{ends[0]:.0f} to {ends[1]:.0f}"


def binding(busy):
    """What is busy, and which of it binds: nothing alone below nine tenths."""
    name, share = max(busy.items(), key=lambda one: one[1])
    parts = ", ".join(f"{part} {100 * of:.0f}%" for part, of in busy.items())
    return f"{name if share > 0.9 else 'none alone'} ({parts})" if len(busy) > 1 else name


def flash_mla():
    """TFLOP/s of the same schedule where FlashMLA published 660: an H800 of 3.35 TB/s, throttled as
    above, 128 heads, long sequences (its authors' article on the kernel of April 2025). It has one
    tile of queries in registers."""
    pages = 128
    form = Form(query_tiles=1)
    feed = 3.35e12 * 0.9 / MULTIPROCESSORS / WORSE["clock"] * 4
    cycles, _ = Simulations.of([pages], [feed], form)
    flop = 2 * 64 * PAGE * pages * (LATENT + RANK) * MULTIPROCESSORS
    return flop / (cycles / WORSE["clock"]) * 1e-12


def table(batch):
    print("us a layer, better and worse end, leaves of 2048. Before: a merge kernel a level, sums "
          "rescaled\nwith every page, all queries in shared memory. Now: merges by the blocks that "
          "computed the leaves,\na lazy peak, a tile of queries in registers.")
    print(f"{'':>12}  {'before':^42}  {'now':^42}")
    columns = f"{'fast':>10} {'canonical':>12} {'canonical/fast':>17}"
    print(f"{'heads':>5} {'length':>6}  {columns}   {columns}   what binds (worse end, now)")
    for heads in (16, 64, 128):
        for length in (4096, 8192):
            line = f"{heads:>5} {length:>6}"
            for form, canonical in ((BEFORE, Model.levels), (NOW, Model.fused)):
                fast, _ = both_ends(Model.fast, heads, batch, length, form=form)
                ours, busy = both_ends(canonical, heads, batch, length, form=form)
                ratio = [a / b for a, b in zip(ours, fast)]
                line += (f"  {text(fast):>10} {text(ours):>12} "
                         f"{f'{ratio[0]:.3f} to {ratio[1]:.3f}':>17}")
            print(f"{line}   {binding(busy)}", flush=True)


def ideas(batch):
    """What was built, and what was not because of these figures."""
    lazy = {"rescale": "lazy"}
    kept = {**lazy, "query_tiles": 1}
    forms = {
        "before": {},
        "rescaling where a warp's vote asks for it": {"rescale": "vote"},
        "and a lazy peak": lazy,
        "and a tile of queries in registers: now": kept,
        "now, and half of the next scores' first tiles before the wait for the values":
            {**kept, "early": 4},
        "now, and a unit's first scores before the last states are stored": {**kept, "ahead": True},
        "now, and three tiles of queries in registers (two spill)": {**kept, "query_tiles": 3},
        "now, with prefetches into L2": {**kept, "prefetch": True},
        "three groups, one for scores, a tile of its queries in registers": {**kept, "groups": 3},
        "three groups, four tiles of queries": {**kept, "query_tiles": 4, "groups": 3},
    }
    print(f"\n128 heads, batch {batch}, 4096 tokens, canonical:")
    for name, form in forms.items():
        times, busy = both_ends(Model.fused, 128, batch, 4096, form=Form(**form))
        print(f"  {text(times):>10}  {name}; tensor cores {100 * busy['tensor cores']:.0f}%",
              flush=True)
    times, _ = both_ends(Model.fused, 128, batch, 4096, near=LATENCY)
    print(f"  {text(times):>10}  now, copies of pages not evicted first: states come from memory")


MIXED = "mixed"  # lengths between 256 and 32768, their logarithms even


def lengths_of(batch, length):
    draw = random.Random(batch)
    return [round(2 ** draw.uniform(8, 15)) if length == MIXED else length for _ in range(batch)]


def ratios(case):
    """Canonical over fast at the worse end, with leaves of 2048 and of 1024."""
    heads, batch, length = case
    lengths = lengths_of(batch, length)
    fast = Model(WORSE, heads, batch, lengths).fast()
    return [Model(WORSE, heads, batch, lengths, leaf=leaf).fused() / fast
            for leaf in (LEAF_PAGES, LEAF_PAGES // 2)]


def balance():
    """How even whole leaves are: batches that do not divide what they are dealt to."""
    cases = [(heads, batch, length) for heads in (16, 64, 128)
             for length, batches in ((4096, (32, 48, 64, 67, 80, 96, 100, 128, 160, 192, 224, 256)),
                                     (MIXED, (32, 64, 128)))
             for batch in batches]
    with multiprocessing.Pool() as pool:
        found = pool.map(ratios, cases, chunksize=1)
    print("\nCanonical / fast, worse end, leaves of 2048; of 1024 (mixed: 256 to 32768 tokens)")
    for (heads, batch, length), (now, short) in zip(cases, found):
        print(f"  {heads:>3} heads  batch {batch:>3} x {length:<6} {now:>6.2f} {short:>6.2f}"
              f"{'   above 1.25: ' + reason(heads, batch, length) if now > 1.25 else ''}")
    for name, at in (("leaves of 2048", 0), ("of 1024", 1)):
        print(f"  median, {name}: {statistics.median(ratio[at] for ratio in found):.2f}")


def reason(heads, batch, length):
    model = Model(WORSE, heads, batch, lengths_of(batch, length))
    units = sum(map(len, model.sequences))
    return (f"{units} units for {model.parts} parts; where memory does not bind, who has "
            f"{math.ceil(units / model.parts)} is waited for")


def halves():
    """A tail of column halves: each computes all scores and half of the output."""
    scores, values, rest = 139264, 73728, 73728 + 8192  # bytes of shared memory a page
    half = (scores + values / 2 + rest) / (scores + values + rest)
    print(f"\nA unit of half of the output's columns takes {half:.2f} of a whole one's shared "
          "memory, which binds.\n128 heads, 66 clusters, busiest part in pages, the best number of "
          "leaves cut so:")
    for batch in (67, 100):
        leaves = 2 * batch
        whole = cost_of([[LEAF_PAGES]] * leaves)
        best, cut = min((cost_of([[LEAF_PAGES]] * (leaves - cut) +
                                 [[half * LEAF_PAGES]] * (2 * cut)), cut)
                        for cut in range(leaves + 1))
        single = cost_of([[LEAF_PAGES]] * 2 * leaves, MULTIPROCESSORS)
        print(f"  batch {batch}: {whole:.0f}, then {best:.0f} with {cut} leaves cut. On single "
              f"blocks, 64 rows a unit: {single:.0f}")


def cost_of(chains, parts=MULTIPROCESSORS // 2):
    return cost(deal(chains, parts)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=128)
    batch = parser.parse_args().batch
    print("Modelled for an H200, not measured.")
    print(f"FlashMLA's schedule on an H800: {flash_mla():.0f} TFLOP/s, published 660\n")
    table(batch)
    ideas(batch)
    balance()
    halves()


if __name__ == "__main__":
    main()
