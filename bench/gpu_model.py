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
import math

from gpu_model_block import Block, Form
from gpu_model_constants import (BETTER, FIXED_PAGES, L2_LATENCY, L2_PORT, LATENCY, LATENT,
                                 LEAF_PAGES, MEMORY, MULTIPROCESSORS, PAGE, PAGE_BYTES, RANK, WORSE)

BEFORE = Form()  # of 2026's first version
NOW = Form(rescale="lazy", query_tiles=1)


def units_of(lengths, parts):
    """Pages of the units of the busiest part in the canonical order: the longest first."""
    leaves = [min(LEAF_PAGES, pages - at)
              for pages in lengths for at in range(0, pages, LEAF_PAGES)]
    loads = [(0, [])] * parts
    for leaf in sorted(leaves, reverse=True):
        best = min(range(parts), key=lambda p: loads[p][0])
        loads[best] = (loads[best][0] + leaf + FIXED_PAGES, loads[best][1] + [leaf])
    return max(loads, key=lambda load: load[0])[1]


def fast_units(lengths, parts):
    """The same of FlashMLA's order: any part takes up to the mean and FIXED_PAGES."""
    total = sum(pages + FIXED_PAGES for pages in lengths)
    room = math.ceil(total / parts) + FIXED_PAGES
    pages = min(lengths[0], room - FIXED_PAGES)
    units, room = [], room
    while room > FIXED_PAGES:
        units.append(min(pages, room - FIXED_PAGES))
        room -= units[-1] + FIXED_PAGES
    return units


class Simulations:
    """Blocks that were simulated: cycles, and what was busy."""
    known = {}

    @classmethod
    def of(cls, units, feed, form):
        key = (tuple(units), round(feed, 3), form)
        if key not in cls.known:
            block = Block(units, feed, form)
            cycles = block.run()
            cls.known[key] = (cycles, {"tensor cores": block.busy["tensor"] / cycles,
                                       "shared memory": block.busy["shared"] / cycles,
                                       "memory": sum(units) * PAGE_BYTES / feed / cycles})
        return cls.known[key]


class Model:
    def __init__(self, constants, heads, batch, length, form=NOW, dependent=False,
                 near=L2_LATENCY):
        self.c, self.form, self.near = constants, form, near
        # A merge after attention starts, or is scheduled while attention drains.
        self.start = constants["dependent" if dependent else "launch"]
        self.heads, self.batch = heads, batch
        self.lengths = [length // PAGE] * batch
        self.leaves = math.ceil(length / PAGE / LEAF_PAGES)
        self.many = heads > 32
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

    def attend(self, units, states, extra=0):
        """extra: cycles of the busiest part besides its units."""
        memory = self.seconds_of_bytes(self.page_bytes(states))
        if not self.many:
            # A tile takes 1,200 cycles of shared memory, and memory 2,000: attend/README.md. The
            # last states of all parts are written when nothing is read any more.
            tail = self.rows * (RANK + 1) * 4 / L2_PORT + LATENCY
            return memory + (tail + extra) / self.c["clock"] + self.c["launch"]
        feed = MEMORY * self.c["memory"] / MULTIPROCESSORS / self.c["clock"] * self.cluster
        cycles, self.busy = Simulations.of(units, feed, self.form)
        return max((cycles + extra) / self.c["clock"], memory) + self.c["launch"]

    def merge(self, trees, inputs, turns, warps):
        """A launch: a warp a head, so many of them on a multiprocessor, waits for memory for its
        tree, then in every turn."""
        waves = math.ceil(trees * self.heads / (warps * MULTIPROCESSORS))
        waits = waves * (1 + turns) * LATENCY / self.c["clock"]
        moved = trees * (inputs + 1) * self.record
        return max(self.seconds_of_bytes(moved), waits) + self.start

    def fast(self):
        units = fast_units(self.lengths, self.parts) if self.many else []
        # Every part but the last splits a sequence: two pieces more, merged in one launch.
        return self.attend(units, self.parts + self.batch) + self.merge(self.parts, 2, 1, 24)

    def leaves_alone(self):
        return self.attend(units_of(self.lengths, self.parts), self.batch * self.leaves)

    def levels(self):
        """A launch a level; a turn is two loads of 4 bytes a lane, then a store: 16 of them."""
        time, nodes = self.leaves_alone(), self.leaves
        while nodes > 1:
            time += self.merge(self.batch * (nodes // 2), 2, 16, 64)
            nodes -= nodes // 2
        return time

    def trees(self):
        """Up to eight states a launch; a turn is eight loads of 16 bytes a lane."""
        time, nodes = self.leaves_alone(), self.leaves
        while nodes > 1:
            slots = min(8, nodes)
            nodes = math.ceil(nodes / 8)
            time += self.merge(self.batch * nodes, slots, slots / 2, 24)
        return time

    def fused(self):
        """By the eight warps of the block that computed the leaves, out of L2."""
        units = units_of(self.lengths, self.parts)
        trees = len(units) / self.leaves if self.leaves > 1 else 0
        waits = self.rows / 8 * (1 + self.leaves / 2) * self.near
        moved = (self.leaves + 1) * self.rows * (RANK + 1) * 4 / L2_PORT
        return self.attend(units, self.batch * (self.leaves + (self.leaves > 1)),
                           trees * max(waits, moved))


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
    cycles, _ = Simulations.of([pages], feed, form)
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
        "now, without prefetches into L2": {**kept, "prefetch": False},
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
    print("\nMerges scheduled while the kernel before drains (programmatic dependent launch):")
    for name, order, heads, sequences, length in (
            ("fast order, 16 heads", Model.fast, 16, batch, 4096),
            ("fast order, 128 heads", Model.fast, 128, batch, 4096),
            ("canonical, 128 heads, one sequence of 131072", Model.trees, 128, 1, 131072)):
        without, _ = both_ends(order, heads, sequences, length)
        times, _ = both_ends(order, heads, sequences, length, dependent=True)
        print(f"  {text(without):>10}  then {text(times):>10}  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=128)
    batch = parser.parse_args().batch
    print("Modelled for an H200, not measured.")
    print(f"FlashMLA's schedule on an H800: {flash_mla():.0f} TFLOP/s, published 660\n")
    table(batch)
    ideas(batch)


if __name__ == "__main__":
    main()
