# One block of the many-rows kernel, simulated page by page (kernels/cuda/sm90/README.md): groups
# that wait for each other, tensor cores and shared memory that they share, copies into tiles that
# readers give back. gpu_model.py prints what follows.
import collections
import dataclasses

from gpu_model_constants import (FOLLOW, L2_LATENCY, L2_PORT, LATENCY, PAGE_BYTES, PRODUCT, QUERIES,
                                 RESCALES, SHARED, SOFTMAX, STORE, TILE_BYTES)

STEP = 8  # cycles of the simulation's clock


@dataclasses.dataclass(frozen=True)
class Form:
    """How the kernel is written."""
    rescale: str = "always"  # RESCALES
    early: int = 0  # tiles of group 0's next scores that are issued before it waits for values
    query_tiles: int = 0  # of the queries, in registers
    ahead: bool = False  # a unit's first scores are begun when half of the last states is stored
    prefetch: bool = False  # pages into L2, two before their copies
    groups: int = 2  # 3: one for scores and softmax, two for halves of the output


@dataclasses.dataclass
class Work:
    """Something that uses tensor cores and shared memory for a while."""
    cycles: float  # alone
    tensor: float = 0  # busy cycles of each
    shared: float = 0
    done: float = 0  # share


class Block:
    """A block over units of so many pages. feeds: bytes a cycle that memory has for it in each."""

    def __init__(self, units, feeds, form=Form()):
        self.units, self.form = units, form
        self.feeds = [feed for pages, feed in zip(units, feeds) for _ in range(pages)]
        # Pages are numbered through; of each, its place in the unit, and the page before it in
        # its buffer.
        self.places = [page for pages in units for page in range(pages)]
        self.before = []
        last = {}
        for number, page in enumerate(self.places):
            self.before.append(last.get(page % 2))
            last[page % 2] = number
        self.events, self.active, self.later = {("copied", -1)}, [], []
        self.busy = collections.Counter()
        self.now = 0

    def rescale(self, number):
        return RESCALES[self.form.rescale](self.places[number])

    # Agents yield what they wait for: the name of an event, or work.
    def half_scores(self, number, group, i, begun=0):
        """Tiles of one half, the last with RoPE; without those that were begun before."""
        yield ("full", number, i if group == 0 else 1 - i)
        tiles = 4 + i - begun
        # One operand of 64 x 64 a tile, or two: queries in registers are not read again.
        reads = 2 * tiles - (min(self.form.query_tiles, tiles) if i == 1 else
                             max(0, self.form.query_tiles - 5))
        if tiles > 0:
            yield Work(tiles * 128 + PRODUCT * i, tiles * 128, reads * TILE_BYTES / SHARED)
        elif i == 1:
            yield Work(PRODUCT)

    def scores(self, number, group, begun=0):
        for i in (0, 1):
            yield from self.half_scores(number, group, i, begun if i == 0 else 0)

    def values(self, own):
        # 64 x 64 weights (of the other group: from shared memory), 64 x 256 values.
        return Work(512 + PRODUCT, 512, (4 * TILE_BYTES + (0 if own else TILE_BYTES)) / SHARED)

    def unit_end(self, name, unit, following=None):
        """Both groups meet, store, and read the next queries. following: work of the next unit
        that is begun after half of it."""
        self.events.add((name, "done", unit))
        for other in self.names():
            yield (other, "done", unit)
        if unit + 1 == len(self.units):
            yield Work(STORE)
        elif following is None:
            yield Work(max(STORE, QUERIES))
        else:
            yield Work(max(STORE / 2, QUERIES))
            rest = Work(STORE / 2)
            self.active.append(rest)
            yield from following
            yield rest

    def names(self):
        return ("0", "1") if self.form.groups == 2 else ("left", "right")

    def group0(self):
        first, begun = 0, 0
        for unit, pages in enumerate(self.units):
            for page in range(0, pages, 2):
                number = first + page
                yield from self.scores(number, 0, begun)
                begun = 0
                yield Work(SOFTMAX)
                self.events.add(("weights", number))
                yield Work(self.rescale(number))
                yield self.values(True)
                self.events.add(("empty", number, 0))
                if page + 1 < pages:
                    yield ("weights", number + 1)
                    yield Work(FOLLOW + self.rescale(number + 1))
                    product = self.values(False)
                    early = min(self.form.early, 4) if page + 2 < pages else 0
                    if early > 0:
                        # The next scores are queued behind the product, whose drain they hide.
                        product = Work(product.cycles - PRODUCT, product.tensor, product.shared)
                        self.active.append(product)
                        yield ("full", number + 2, 0)
                    yield product
                    self.later.append((self.now + (PRODUCT if early else 0),
                                       ("empty", number + 1, 0)))
                    if early > 0:
                        yield Work(early * 128, early * 128, early * 2 * TILE_BYTES / SHARED)
                        begun = early
            first += pages
            more = unit + 1 < len(self.units)
            if self.form.ahead and more:
                begun = 4
                yield from self.unit_end("0", unit, self.half_scores(first, 0, 0))
            else:
                yield from self.unit_end("0", unit)

    def group1(self):
        first, begun = 0, 0
        for unit, pages in enumerate(self.units):
            for page in range(0, pages, 2):
                number = first + page
                pair = page + 1 < pages
                if pair:
                    yield from self.scores(number + 1, 1, begun)
                begun = 0
                yield ("weights", number)
                yield Work(FOLLOW + self.rescale(number))
                product = self.values(False)
                self.active.append(product)  # goes on by itself
                if pair:
                    yield Work(SOFTMAX)
                    self.events.add(("weights", number + 1))
                yield product
                self.events.add(("empty", number, 1))
                if pair:
                    yield Work(self.rescale(number + 1))
                    yield self.values(True)
                    self.events.add(("empty", number + 1, 1))
            first += pages
            if self.form.ahead and unit + 1 < len(self.units) and self.units[unit + 1] > 1:
                begun = 4
                yield from self.unit_end("1", unit, self.half_scores(first + 1, 1, 0))
            else:
                yield from self.unit_end("1", unit)

    def scorer(self):
        """Of three groups, the one that computes scores: a page ahead of its softmax."""
        for number in range(len(self.places)):
            if number >= 1 and self.places[number] == 0:
                yield Work(QUERIES)
            yield from self.scores(number, number % 2)
            softmax = Work(SOFTMAX)
            self.active.append(softmax)
            self.softmaxes.append((number, softmax))

    def publisher(self):
        """Its softmaxes, one after the other."""
        for number in range(len(self.places)):
            while len(self.softmaxes) <= number:
                yield Work(STEP)
            yield self.softmaxes[number][1]
            self.events.add(("weights", number))

    def output(self, name, half):
        first = 0
        for unit, pages in enumerate(self.units):
            for number in range(first, first + pages):
                yield ("weights", number)
                yield Work(FOLLOW + self.rescale(number))
                yield self.values(False)
                self.events.add(("empty", number, half))
            first += pages
            self.events.add((name, "done", unit))
            yield Work(STORE)

    def near(self, number):
        """Whether the page is in L2 before its copy. The first two of a unit are not."""
        return self.form.prefetch and self.places[number] >= 2

    def prefetches(self):
        """From memory into L2."""
        for number in range(len(self.places)):
            yield ("copied", number - 3) if self.near(number) else ("wanted", number)
            yield Work(PAGE_BYTES / self.feeds[number])
            self.later.append((self.now + LATENCY, ("near", number)))

    def copies(self):
        """From L2 into tiles that are free."""
        for number, page in enumerate(self.places):
            before = self.before[number]
            for i, half in enumerate((0, 1) if page % 2 == 0 else (1, 0)):
                if before is not None:
                    yield ("empty", before, half)
                if i == 0:
                    self.events.add(("wanted", number))
                    yield ("near", number)
                share = PAGE_BYTES * (4 + half) / 9
                yield Work(share / L2_PORT, 0, share / SHARED)
                self.later.append((self.now + L2_LATENCY, ("full", number, half)))
            self.events.add(("copied", number))

    def agents(self):
        if self.form.groups == 2:
            return (self.group0(), self.group1(), self.copies(), self.prefetches())
        self.softmaxes = []
        return (self.scorer(), self.publisher(), self.output("left", 0), self.output("right", 1),
                self.copies(), self.prefetches())

    def run(self):
        agents = {agent: next(agent) for agent in self.agents()}
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
            if not works and not self.later and agents:
                raise RuntimeError(f"the model waits for ever: {list(agents.values())}")
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
