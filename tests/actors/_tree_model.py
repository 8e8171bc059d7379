"""Sequential model of OTP's restart rules with callboard's delays: it computes what a plan for a tree should do."""

from collections import deque

from ._tree_world import BACKOFF, POISON, UNTIL, Branch, Death, Leaf, Outcome, Plan


class _Child:
    """Common part of an actor and a supervisor, as their supervisor sees them."""

    alive = False

    def __init__(self, model: "Model", above: "_Branch | None") -> None:
        self.model = model
        self.above = above

    def start(self) -> Outcome:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


class _Leaf(_Child):
    def __init__(self, model: "Model", above: "_Branch", plan: Leaf) -> None:
        super().__init__(model, above)
        self.plan = plan
        self.starts = 0
        self.deaths: dict[str, int] = {}

    def start(self) -> Outcome:
        number, later = self.starts, self.plan.later
        self.starts += 1
        outcome = later[number - 1] if 1 <= number <= len(later) else "starts"
        self.alive = outcome == "starts"
        self.model.write(f"{'+' if self.alive else '?'}{self.plan.name}")
        return outcome

    def stop(self) -> None:
        if self.alive:
            self.alive = False
            self.model.write(f"-{self.plan.name}")

    def die(self, call: str | None) -> None:
        """Kill the actor, or let it die of a call, unless that call is already refused as poison."""
        assert self.above is not None
        times = 0 if call is None else self.deaths.get(call, 0)
        if not self.alive or times >= POISON:
            return
        if call is not None:
            self.deaths[call] = times + 1
        self.stop()
        cause = None if call is None else (self.plan.name, call)
        self.above.hear(self, cause, is_refused=times + 1 >= POISON and call is not None)


Cause = tuple[str, str] | None


class _Branch(_Child):
    def __init__(self, model: "Model", above: "_Branch | None", plan: Branch) -> None:
        super().__init__(model, above)
        self.plan = plan
        self.children: list[_Leaf | _Branch] = [
            _Leaf(model, self, child) if isinstance(child, Leaf) else _Branch(model, self, child)
            for child in plan.children
        ]
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.window: list[tuple[float, Cause]] = []
        self.away: set[int] = set()
        self.alone: dict[int, float] = {}
        """Start times of children that restart alone."""
        self.together: tuple[float, list[int]] | None = None
        """Start time of the children that were stopped together with another one."""
        self.unheard: deque[tuple[_Leaf | _Branch, Cause, bool]] = deque()

    def start(self) -> Outcome:
        self._begin_anew()
        for number, child in enumerate(self.children):
            if (outcome := child.start()) != "starts":
                for started_child in reversed(self.children[:number]):
                    started_child.stop()
                return outcome
        self.alive = True
        return "starts"

    def stop(self) -> None:
        self.alive = False
        for child in reversed(self.children):
            child.stop()

    def hear(self, child: "_Leaf | _Branch", cause: Cause = None, *, is_refused: bool = False) -> None:
        """Handle the end of a child that ended by itself."""
        self.unheard.append((child, cause, is_refused))
        self._go_on()

    def _go_on(self) -> None:
        while self.unheard and self.together is None and self.alive:
            child, cause, is_refused = self.unheard.popleft()
            if not child.alive:
                self._decide(self.children.index(child), cause, is_refused=is_refused)

    def _decide(self, index: int, cause: Cause = None, *, is_refused: bool = False, never_starts: bool = False) -> bool:
        """Return whether the other children that were due to start are still to start."""
        plan = self.children[index].plan
        restart = plan.restart if isinstance(plan, Leaf) else "permanent"
        if never_starts or restart == "temporary":
            self.away.add(index)
            return True
        now = self.model.now
        self.window = [entry for entry in self.window if now - entry[0] < self.plan.period]
        if is_refused:
            self.window = [entry for entry in self.window if entry[1] != cause]
        else:
            self.window.append((now, cause))
        if len(self.window) > self.plan.intensity:
            self._give_up()
            return False
        self._start_again(index, now + BACKOFF.delay(max(1, len(self.window)), 0))
        return False

    def _start_again(self, index: int, due_time: float) -> None:
        first = {"one_for_one": len(self.children), "one_for_all": 0, "rest_for_one": index + 1}[self.plan.strategy]
        siblings = [
            sibling for sibling in range(first, len(self.children)) if sibling != index and sibling not in self.away
        ]
        for sibling in reversed(siblings):
            self.children[sibling].stop()
            plan = self.children[sibling].plan
            if isinstance(plan, Leaf) and plan.restart == "temporary":
                self.away.add(sibling)
        if siblings:
            self.together = due_time, sorted({index, *siblings} - self.away)
        else:
            self.alone[index] = due_time

    def _give_up(self) -> None:
        self.stop()
        if self.above is None:
            self.model.end("gives up")
        else:
            self.above.hear(self)

    def next_time(self) -> float:
        """Return when the next restart is due, in this supervisor or below it."""
        own_times = [] if self.together is None else [self.together[0]]
        if self.together is None:
            own_times += self.alone.values()
        below = [child.next_time() for child in self.children if isinstance(child, _Branch)]
        return min([*own_times, *below] if self.alive else [], default=float("inf"))

    def turn(self) -> None:
        """Do what is due at the current time."""
        for child in self.children:
            if isinstance(child, _Branch) and child.next_time() <= self.model.now:
                child.turn()
                return
        if self.together is not None:
            (_, starts), self.together = self.together, None
        else:
            starts = [min(self.alone, key=lambda index: self.alone[index])]
        for index in starts:
            self.alone.pop(index, None)
            outcome = self.children[index].start()
            if outcome != "starts" and not self._decide(index, never_starts=outcome == "never"):
                break
        self._go_on()


class Model:
    """Model of one plan, with the expected observations."""

    def __init__(self, plan: Plan) -> None:
        self.now = 0.0
        self.events: list[tuple[float, str]] = []
        self._ended = False
        self._root = _Branch(self, None, plan.root)
        self._root.start()
        for death in plan.deaths:
            self._go_to(death.at)
            self._die(death)
        self._go_to(UNTIL)
        if not self._ended:
            self.write("is left")
            self._root.stop()

    def write(self, event: str) -> None:
        self.events.append((round(self.now, 3), event))

    def end(self, ending: str) -> None:
        self._ended = True
        self.write(ending)

    def _go_to(self, moment: float) -> None:
        while not self._ended and (due := self._root.next_time()) <= moment:
            self.now = due
            self._root.turn()
        self.now = moment

    def _die(self, death: Death) -> None:
        leaves = _leaves(self._root)
        if not self._ended:
            leaves[death.leaf % len(leaves)].die(death.call)


def _leaves(branch: _Branch) -> list[_Leaf]:
    leaves: list[_Leaf] = []
    for child in branch.children:
        leaves += [child] if isinstance(child, _Leaf) else _leaves(child)
    return leaves
