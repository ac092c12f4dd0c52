# One engine step: which of its tokens are whose, and a step of the tier for those that decode.
import concurrent.futures
import dataclasses

import torch

import tributary

MOST_AT_ONCE = 16  # new tokens of a sequence in a step of the tier


@dataclasses.dataclass(eq=False)
class Part:
    """A request's tokens in the step: tokens begin .. end - 1 of the batch, the first of them at
    `position`."""

    name: str
    held: object
    begin: int
    end: int
    position: int
    # Tokens before them whose rows the sequence lacks: the last of a prompt, which came with it, or
    # what was decoded here. They join the step with queries that nobody reads.
    tail: int = 0

    @property
    def length(self):
        return self.position + self.end - self.begin


class Batch:
    def __init__(self, worker, metadata):
        self._worker = worker
        starts, lengths = metadata.starts, metadata.lengths
        parts = [Part(name, held, starts[i], starts[i + 1],
                      lengths[i] - (starts[i + 1] - starts[i]))
                 for i, (name, held) in enumerate(worker.of_blocks(metadata.newest_blocks))]
        for part in parts:
            if part.position == 0:
                part.held.restart()
        self._decodes = parts[:metadata.num_decodes]
        self.prefills = parts[metadata.num_decodes:]
        self._live = None  # decodes that the tier attends to; None: not known yet
        self._step = None
        self._rows = None
        self._layers_run = set()

    def add_rows(self, layer, rows):
        """[T, C + R] of all tokens of the step. A prompt's are sent while the layer goes on."""
        self._rows = rows
        self._worker.rows_come(layer, rows)
        for part in self._decodes:
            if part.held.here:
                part.held.add(layer, rows[part.begin:part.end])
        pushes = []
        for part in self.prefills:
            part.held.add(layer, rows[part.begin:part.end])
            sequence = part.held.sequence
            if sequence is not None and not part.held.ready:
                count = min(part.end - part.begin, sequence.prompt_tokens - part.position)
                if count > 0:
                    kind = self._worker.types(sequence.shape)[1]
                    pushes.append((part.held, (sequence, part.position, rows[
                        part.begin:part.begin + count].to("cpu", kind))))
        if pushes:
            future = self._worker.pushing.submit(self._worker.client.push, layer,
                                                 [push for _, push in pushes])
            for index, (held, _) in enumerate(pushes):
                held.pushes.append((future, index))

    def attend(self, layer, query, local):
        """query [T, H, C + R] of the tokens that decode; the result [T, H, C]. `local(query, rows)`
        computes the same of one request's rows."""
        if self._live is None:
            self._live = self._open()
        asked = list(self._live)
        plain = len(asked) == len(self._decodes) and not any(part.tail for part in asked)
        o = self._attend_asked(layer, query, asked, plain) if asked else None
        self._layers_run.add(layer)
        if plain and o is not None and len(self._live) == len(asked):
            return o.to(query.device, query.dtype)
        out = query.new_zeros(*query.shape[:2], self._worker.kv_lora_rank)
        place = 0
        for part in asked if o is not None else ():
            place += part.tail
            count = part.end - part.begin
            if part in self._live:
                out[part.begin:part.end] = o[place:place + count].to(out.device, out.dtype)
            place += count
        for part in self._decodes:
            if part not in self._live and part.held.here:
                out[part.begin:part.end] = local(query[part.begin:part.end],
                                                 part.held.rows(layer)[:part.length])
        return out

    def _attend_asked(self, layer, query, asked, plain):
        """Of these parts and their tails; None where all have failed."""
        queries, rows = query, self._rows[:query.shape[0]]
        if not plain:
            queries = torch.cat([piece for part in asked for piece in (
                query.new_zeros(part.tail, *query.shape[1:]), query[part.begin:part.end])])
            rows = torch.cat([piece for part in asked for piece in (
                *([part.held.rows(layer)[part.position - part.tail:part.position]]
                  if part.tail else []), self._rows[part.begin:part.end])])
        query_type, row_type = self._worker.types(asked[0].held.sequence.shape)
        try:
            return self._step.attend(layer, queries.to("cpu", query_type),
                                     rows.to("cpu", row_type))[0]
        except tributary.Error as error:
            self._lose(error)
            return error.results[0] if error.results is not None else None

    def _lose(self, error):
        """Those that failed, or all of the call, go; the step goes on with the others."""
        failed = error.failed or dict.fromkeys(range(len(self._live)), error)
        for index, why in failed.items():
            self._worker.lose(self._live[index].name, self._live[index].held, why)
        left = [part for i, part in enumerate(self._live) if i not in failed]
        if self._step is not None and left:
            self._step = self._new_step(left)
        self._live = left

    def _new_step(self, parts):
        return self._worker.client.step([part.held.sequence for part in parts],
                                        [part.end - part.begin + part.tail for part in parts])

    def _open(self):
        """Whose rows lie in the tier, each with room for the step."""
        worker = self._worker
        for part in self._decodes:
            if part.held.settled is not None and part.held.sequence is None:
                worker.move_in(part.name, part.held)
        self._live = [part for part in self._decodes if part.held.sequence is not None]
        self._wait_ready([part for part in self._live if not part.held.ready])
        self._live = [part for part in self._live
                      if part.held.sequence is not None and self._has_room(part)]
        for part in self._decodes:
            if part.held.sequence is None and part.held.here:
                worker.settle(part.name, part.held)
        if self._live:
            self._step = self._new_step(self._live)
        return self._live

    def _wait_ready(self, parts):
        worker, timeout = self._worker, self._worker.options.timeout
        pushed = []
        for part in parts:
            why = self._push_error(part.held, timeout)
            if why is None:
                pushed.append(part)
            else:
                worker.lose(part.name, part.held, why)
        try:
            worker.client.wait_ready([part.held.sequence for part in pushed])
        except tributary.Error as error:
            failed = error.failed or dict.fromkeys(range(len(pushed)), error)
            for index, why in failed.items():
                worker.lose(pushed[index].name, pushed[index].held, why)
        for part in pushed:
            part.held.ready = part.held.sequence is not None

    @staticmethod
    def _push_error(held, timeout):
        for future, index in held.pushes:
            try:
                future.result(timeout)
            except tributary.Error as error:
                if not error.failed or index in error.failed:
                    return error.failed.get(index, error)
            except concurrent.futures.TimeoutError:
                return f"its rows were not pushed in {timeout} s"
        held.pushes = []
        return None

    def _has_room(self, part):
        """Catches up what is too much for one step, and asks for more room where it ends."""
        held = part.held
        sequence = held.sequence
        room = sequence.prompt_tokens + sequence.max_new_tokens
        try:
            if part.length > room:
                self._extend(part)
            while (new := part.length - sequence.length) > MOST_AT_ONCE:
                self._catch_up(part, min(MOST_AT_ONCE, new - (part.end - part.begin)))
            part.tail = part.position - sequence.length
        except tributary.Error as error:
            self._worker.lose(part.name, held, error)
            return False
        return True

    def _extend(self, part):
        """For some steps, or where the tier has no room for them, for this one."""
        sequence = part.held.sequence
        more = min(part.length + self._worker.options.reserve_tokens,
                   max(part.held.last, part.length))
        try:
            sequence.extend(more - sequence.prompt_tokens)
        except tributary.PoolFull:
            sequence.extend(part.length - sequence.prompt_tokens)

    def _catch_up(self, part, count):
        sequence = part.held.sequence
        query_type, row_type = self._worker.types(sequence.shape)
        query = torch.zeros(count, sequence.shape.heads, sequence.shape.latent_dim,
                            dtype=query_type)
        begin = sequence.length
        with self._worker.client.step([sequence], count) as step:
            for layer in range(sequence.shape.layers):
                rows = part.held.rows(layer)[begin:begin + count]
                step.attend(layer, query, rows.to("cpu", row_type))

    def commit(self):
        """After the last layer. A forward pass that failed has run fewer."""
        if not self._live or len(self._layers_run) < len(self._worker.layers):
            return
        try:
            self._step.commit()
        except tributary.Error as error:
            self._step = None
            self._lose(error)
        for part in self._live:
            part.held.forget_rows()
