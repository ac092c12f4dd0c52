#!/usr/bin/env python3
# A cycle model of decode attention on an H200, by the kernels' sources, without a GPU.
"""A cycle model of decode attention on an H200.

Prints the time of one layer in the fast and in the canonical order of merges, as it was before
merges of trees and merges where attention computes, and as it is; and which resource binds. Two
figures a column: the better and the worse end of what is not known without a device. The first
measurement (bench/gpu_check.sh) corrects the constants, which are all here, with their sources.

The many-rows kernel is simulated pair of pages by pair of pages (kernels/cuda/sm90/README.md): two
groups, tensor cores and shared memory that both use, copies into tiles that readers give back.
The few-rows kernel and the merges are counts of bytes.
"""
import argparse
import collections
import dataclasses
import math

# Of an H200: NVIDIA's datasheet, and the CUDA programming guide on compute capability 9.0. The rate
# of the L2 port and the latencies are what published microbenchmarks of Hopper say, rounded.
MULTIPROCESSORS = 132
MEMORY = 4.8e12  # bytes a second
SHARED = 128  # bytes a cycle and multiprocessor
L2_PORT = 64  # bytes a cycle from L2 to a multiprocessor, and back
TENSOR = 1024  # bf16 multiply-adds a cycle and multiprocessor: 989 TFLOP/s at 1.83 GHz
# Not known without a device, better and worse end. Of the memory: what copies reach of the
# datasheet's rate. The clock: 1.83 GHz at 989 TFLOP/s; FlashMLA's authors saw tensor cores throttle
# to 865 TFLOP/s (1.6 GHz) on an H800. A start of a kernel in a graph, with its drain.
BETTER = {"memory": 0.92, "clock": 1.75e9, "launch": 2.5e-6}
WORSE = {"memory": 0.88, "clock": 1.6e9, "launch": 4e-6}
LATENCY = 800  # cycles of a load from memory under load; of one from L2:
L2_LATENCY = 400

# The kernels (kernels/cuda/sm90/layout.h, attend/few_rows_shape.h).
PAGE, RANK, LATENT = 64, 512, 576
PAGE_BYTES = PAGE * LATENT * 2
LEAF_PAGES = 32
FIXED_PAGES = 5  # FlashMLA's schedule, and ours
# Cycles of one group between products, counted by instructions a thread: softmax of 32 scores (256
# of them for 32 ex2 at 4 lanes a cycle and scheduler; maxima, shuffles, sums, stores the rest),
# rescaling of 128 sums, peaks of the other group with its barrier, issue and drain of a product.
SOFTMAX, RESCALE, FOLLOW, PRODUCT = 440, 128, 100, 60
STEP = 8  # cycles of the simulation's clock


@dataclasses.dataclass
class Work:
    """Something that uses tensor cores and shared memory for a while."""
    cycles: float  # alone
    tensor: float = 0  # busy cycles of each
    shared: float = 0
    done: float = 0  # share


class Block:
    """A block of the many-rows kernel over the pages of one unit. feed: bytes a cycle of copies."""

    def __init__(self, pages, feed, rescale=RESCALE):
        self.pages, self.feed, self.rescale = pages, feed, rescale
        self.events, self.active, self.later = set(), [], []
        self.busy = collections.Counter()
        self.now = 0

    # Agents yield what they wait for: the name of an event, or work.
    def scores(self, page, group):
        halves = (0, 1) if group == 0 else (1, 0)
        for i, half in enumerate(halves):
            yield ("full", page, half)
            tiles = 4 + i  # RoPE comes last
            yield Work(tiles * 128 + PRODUCT * i, tiles * 128, tiles * 16384 / SHARED)

    def values(self, own):
        # 64 x 64 weights (of the other group: from shared memory), 64 x 256 values.
        return Work(512 + PRODUCT, 512, (32768 + (0 if own else 8192)) / SHARED)

    def group0(self):
        for page in range(0, self.pages, 2):
            yield from self.scores(page, 0)
            yield Work(SOFTMAX)
            self.events.add(("weights", page))
            yield Work(self.rescale)
            yield self.values(True)
            self.events.add(("empty", page, 0))
            if page + 1 < self.pages:
                yield ("weights", page + 1)
                yield Work(FOLLOW + self.rescale)
                yield self.values(False)
                self.events.add(("empty", page + 1, 0))

    def group1(self):
        for page in range(0, self.pages, 2):
            pair = page + 1 < self.pages
            if pair:
                yield from self.scores(page + 1, 1)
            yield ("weights", page)
            yield Work(FOLLOW + self.rescale)
            product = self.values(False)
            self.active.append(product)  # goes on by itself
            if pair:
                yield Work(SOFTMAX)
                self.events.add(("weights", page + 1))
            yield product
            self.events.add(("empty", page, 1))
            if pair:
                yield Work(self.rescale)
                yield self.values(True)
                self.events.add(("empty", page + 1, 1))

    def prefetches(self):
        """From memory into L2, two pages ahead of the copies."""
        for page in range(self.pages):
            if page >= 4:
                yield ("copied", page - 4)
            yield Work(PAGE_BYTES / self.feed)
            self.later.append((self.now + LATENCY, ("near", page)))

    def copies(self):
        """From L2 into tiles that are free."""
        for page in range(self.pages):
            yield ("near", page)
            for half in (0, 1) if page % 2 == 0 else (1, 0):
                if page >= 2:
                    yield ("empty", page - 2, half)
                share = PAGE_BYTES * (4 + half) / 9
                yield Work(share / L2_PORT, 0, share / SHARED)
                self.later.append((self.now + L2_LATENCY, ("full", page, half)))
            self.events.add(("copied", page))

    def run(self):
        agents = {agent: next(agent) for agent in (self.group0(), self.group1(), self.copies(),
                                                   self.prefetches())}
        while agents:
            self.events.update(event for time, event in self.later if time <= self.now)
            self.later = [(time, event) for time, event in self.later if time > self.now]
            for agent, waits in list(agents.items()):
                while waits in self.events if isinstance(waits, tuple) else waits.done >= 1:
                    waits = next(agent, None)
                    if waits is None:
                        del agents[agent]
                        break
                    agents[agent] = waits
            works = {id(w): w for w in (*self.active, *agents.values()) if isinstance(w, Work)}
            works = [w for w in works.values() if w.done < 1]
            # Who asks for more than there is waits in proportion.
            load = {name: sum(getattr(w, name) / w.cycles for w in works)
                    for name in ("tensor", "shared")}
            for w in works:
                slow = max([1] + [load[name] for name in load if getattr(w, name) > 0])
                advance = min(1 - w.done, STEP / w.cycles / slow)
                w.done += advance
                for name in load:
                    self.busy[name] += advance * getattr(w, name)
            self.active = [w for w in self.active if w.done < 1]
            self.now += STEP
        return self.now


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


class Model:
    def __init__(self, constants, heads, batch, length, **changes):
        self.c = constants
        # What an idea would change: cycles of a rescaling, of the writing of a unit's states, and
        # the latency of states that are merged.
        self.rescale = changes.get("rescale", RESCALE)
        self.store = changes.get("store", 1)
        self.near = changes.get("near", L2_LATENCY)
        self.heads, self.batch = heads, batch
        self.lengths = [length // PAGE] * batch
        self.leaves = math.ceil(length / PAGE / LEAF_PAGES)
        self.many = heads > 32
        self.rows = min(64, heads)
        self.cluster = 2 if heads > 64 else 1
        self.parts = MULTIPROCESSORS // self.cluster
        self.record = heads * (RANK + 1) * 4
        self.simulated = {}
        self.binds = ""

    def seconds_of_bytes(self, count):
        return count / (MEMORY * self.c["memory"])

    def page_bytes(self, states):
        rows = sum(self.lengths) * PAGE
        return rows * LATENT * 2 + self.batch * self.heads * LATENT * 2 + states * self.record

    def unit_cycles(self, pages):
        """Of one unit, the writing of its states included."""
        if pages not in self.simulated:
            feed = MEMORY * self.c["memory"] / MULTIPROCESSORS / self.c["clock"] * self.cluster
            block = Block(pages, feed, self.rescale)
            cycles = block.run()
            shares = {"tensor cores": block.busy["tensor"] / cycles,
                      "shared memory": block.busy["shared"] / cycles,
                      "memory": pages * PAGE_BYTES / feed / cycles}
            self.binds = ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())
            self.simulated[pages] = cycles
        return self.simulated[pages] + self.store * self.rows * (RANK + 1) * 4 / L2_PORT

    def attend(self, units, states, extra=0):
        """extra: cycles of the busiest part besides its units."""
        memory = self.seconds_of_bytes(self.page_bytes(states))
        if not self.many:
            # A tile takes 1,200 cycles of shared memory, and memory 2,000: attend/README.md. The
            # last states of all parts are written when nothing is read any more.
            tail = self.rows * (RANK + 1) * 4 / L2_PORT + LATENCY
            self.binds = "memory"
            return memory + (tail + extra) / self.c["clock"] + self.c["launch"]
        cycles = sum(self.unit_cycles(pages) for pages in units) + extra
        return max(cycles / self.c["clock"], memory) + self.c["launch"]

    def merge(self, trees, inputs, turns, warps):
        """A launch: a warp a head, so many of them on a multiprocessor, waits for memory for its
        tree, then in every turn."""
        waves = math.ceil(trees * self.heads / (warps * MULTIPROCESSORS))
        waits = waves * (1 + turns) * LATENCY / self.c["clock"]
        moved = trees * (inputs + 1) * self.record
        return max(self.seconds_of_bytes(moved), waits) + self.c["launch"]

    def fast(self):
        units = fast_units(self.lengths, self.parts) if self.many else []
        # Every part but the last splits a sequence: two pieces more, merged in one launch.
        return self.attend(units, self.parts + self.batch) + self.merge(self.parts, 2, 1, 24)

    def leaves_alone(self):
        return self.attend(units_of(self.lengths, self.parts), self.batch * self.leaves)

    def before(self):
        """A launch a level; a turn is two loads of 4 bytes a lane, then a store: 16 of them."""
        time, nodes = self.leaves_alone(), self.leaves
        while nodes > 1:
            time += self.merge(self.batch * (nodes // 2), 2, 16, 64)
            nodes -= nodes // 2
        return time

    def trees(self):
        """Up to eight states a launch; a turn is eight loads of 16 bytes a lane."""
        if self.leaves == 1:
            return self.leaves_alone()
        return self.leaves_alone() + self.merge(self.batch, self.leaves, self.leaves / 2, 24)

    def fused(self):
        """By the eight warps of the block that computed the leaves, out of L2."""
        units = units_of(self.lengths, self.parts)
        trees = len(units) / self.leaves if self.leaves > 1 else 0
        waits = self.rows / 8 * (1 + self.leaves / 2) * self.near
        moved = (self.leaves + 1) * self.rows * (RANK + 1) * 4 / L2_PORT
        return self.attend(units, self.batch * (self.leaves + (self.leaves > 1)),
                           trees * max(waits, moved))


ORDERS = {"fast": Model.fast, "before": Model.before, "trees": Model.trees, "fused": Model.fused}


IDEAS = {
    "copies of pages not evicted first: states come from memory": {"near": LATENCY},
    "rescaling only where a vote asks for it (two pages of three)": {"rescale": RESCALE * 2 // 3},
    "a lazy peak (hardly ever)": {"rescale": 8},
    "the next unit's scores while states are written": {"store": 0},
}


def flash_mla():
    """TFLOP/s of the same schedule where FlashMLA published 660: an H800 of 3.35 TB/s, throttled as
    above, 128 heads, long sequences (its authors' article on the kernel of April 2025)."""
    pages = 128
    cycles = Block(pages, 3.35e12 * 0.9 / MULTIPROCESSORS / WORSE["clock"] * 4).run()
    flop = 2 * 64 * PAGE * pages * (LATENT + RANK) * MULTIPROCESSORS
    return flop / (cycles / WORSE["clock"]) * 1e-12


def both_ends(order, heads, batch, length, **changes):
    models = [Model(constants, heads, batch, length, **changes) for constants in (BETTER, WORSE)]
    return [order(model) * 1e6 for model in models], models[1].binds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=128)
    batch = parser.parse_args().batch
    print("Modelled for an H200, not measured.")
    print(f"FlashMLA's schedule on an H800: {flash_mla():.0f} TFLOP/s, published 660\n")
    print("us a layer, better and worse end. Canonical, leaves of 2048: before, a merge kernel a "
          "level;\ntrees, eight states a pass; fused, by the blocks that computed the leaves")
    print(f"{'heads':>5} {'length':>6}  " + "  ".join(f"{name:>10}" for name in ORDERS) +
          f"  {'fused/fast':>12}  busy (worse end)")
    for heads in (16, 64, 128):
        for length in (4096, 8192):
            times = {name: both_ends(order, heads, batch, length) for name, order in ORDERS.items()}
            ends = {name: time for name, (time, _) in times.items()}
            ratio = [fused / fast for fused, fast in zip(ends["fused"], ends["fast"])]
            print(f"{heads:>5} {length:>6}  " +
                  "  ".join(f"{low:>3.0f} to {high:>3.0f}" for low, high in ends.values()) +
                  f"  {ratio[0]:.3f} {ratio[1]:.3f}  {times['fused'][1]}")
    print("\n128 heads, 4096, fused; what else there is, by itself:")
    for name, changes in IDEAS.items():
        times, _ = both_ends(Model.fused, 128, batch, 4096, **changes)
        print(f"  {times[0]:>3.0f} to {times[1]:>3.0f}  {name}")


if __name__ == "__main__":
    main()
