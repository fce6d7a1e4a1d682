"""The fusion explorer (FusionStitching 5) decides which operators become one kernel.

Candidate patterns by approximate dynamic programming from the outputs up, PatternReduction in groups with the top k,
then a beam search over plans whose winner the latency-evaluator picks, and last the remote fusion of small patterns
that do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from veltair.compiler.stitch.cost_models import LAUNCH_NS, gain_ns, plan_ns
from veltair.compiler.stitch.iteration_space import iteration_space
from veltair.compiler.stitch.remote_fusion import STRETCH, as_bits, group_patterns, runnable_order, union
from veltair.compiler.stitch.stitch_program import Shape, StitchOp, StitchProgram, build_program

Pattern = frozenset[int]  # operators by their place in topological order

TOP = 3  # candidates kept for each operator
GROUP = 2  # consumers whose candidates are combined exhaustively
BEAM = 3
LARGEST = 48  # operators in a pattern: beyond it code grows and nothing is saved
SMALL_NS = 4 * LAUNCH_NS  # patterns below it are worth packing


@dataclass(frozen=True, slots=True)
class _PartialPlan:
    """A plan of the beam search: the one before, and a pattern more."""

    score: float
    before: _PartialPlan | None
    pattern: Pattern
    covered: int  # operators in its patterns, a bit each

    def patterns(self) -> list[Pattern]:
        found = list[Pattern]()
        plan = self
        while plan.before is not None:
            found.append(plan.pattern)
            plan = plan.before
        return found[::-1]


class FusionExplorer:
    """Explores fusions of a graph of operators, connected or not.

    Use::

        explorer = FusionExplorer(ops, shapes, wanted)
        groups = explorer.packed(explorer.plan())

    Args:
        ops: in topological order.
        shapes: of every value.
        wanted: values read by others than these operators.
        outside: consumer -> producers that it waits for by way of nodes that are not operators here; fusing across
            such a path would close a cycle.
    """

    def __init__(
        self,
        ops: Sequence[StitchOp],
        shapes: Mapping[str, Shape],
        wanted: Iterable[str],
        outside: Mapping[int, frozenset[int]] | None = None,
    ) -> None:
        self.ops, self.shapes = ops, shapes
        made = {op.output: i for i, op in enumerate(ops)}
        self.producers = [sorted({made[name] for name in op.operands if name in made}) for op in ops]
        self.consumers: list[list[int]] = [[] for _ in ops]
        for i, producers in enumerate(self.producers):
            for producer in producers:
                self.consumers[producer].append(i)
        self.outside = outside or {}
        # Operators that one depends on, and those that depend on it, by any way: a bit each, since sets of a thousand
        # operators in a row would take a second, and of ten thousand gigabytes.
        self.before, self.after = [0] * len(ops), [0] * len(ops)
        direct = [{*producers, *self.outside.get(i, ())} for i, producers in enumerate(self.producers)]
        for i, needed in enumerate(direct):
            for p in needed:
                self.before[i] |= self.before[p] | 1 << p
        for i in reversed(range(len(ops))):
            for p in direct[i]:
                self.after[p] |= self.after[i] | 1 << i
        self.wanted = set(wanted)
        self._scores: dict[Pattern, float | None] = {}

    def program(self, pattern: Pattern) -> StitchProgram:
        inside = sorted(pattern)
        wanted = self.wanted | {
            self.ops[i].output for i in inside if any(consumer not in pattern for consumer in self.consumers[i])
        }
        return build_program([self.ops[i] for i in inside], self.shapes, wanted)

    def score(self, pattern: Pattern) -> float | None:
        """The delta-evaluator's gain; None for a pattern that cannot be one kernel."""
        if pattern not in self._scores:
            self._scores[pattern] = self._score(pattern)
        return self._scores[pattern]

    def _score(self, pattern: Pattern) -> float | None:
        if len(pattern) > LARGEST or self.is_cyclic(pattern):
            return None
        fused = self.program(pattern)
        space = iteration_space(fused)
        return None if space is None else gain_ns(fused, space)

    def is_cyclic(self, pattern: Pattern) -> bool:
        """Whether an operator outside depends on one inside, and another inside depends on it (figure 6)."""
        if any(self.outside.get(i, frozenset()) & pattern for i in pattern):
            return True
        return bool(union(self.before, pattern) & union(self.after, pattern) & ~as_bits(pattern))

    def candidates(self) -> list[list[Pattern]]:
        """The best patterns whose first operator is each one, best first; post-order, so consumers come before."""
        found: list[list[Pattern]] = [[] for _ in self.ops]
        for i in reversed(range(len(self.ops))):
            alone = frozenset([i])
            joined = self._reduce(alone, self.consumers[i], found)
            found[i] = self._best([alone, *joined])
        return found

    def _reduce(self, head: Pattern, consumers: Sequence[int], found: Sequence[Sequence[Pattern]]) -> list[Pattern]:
        """PatternReduction: the head with every combination of its consumers' candidates, group by group."""
        if len(consumers) > GROUP:
            half = len(consumers) // 2
            parts = [self._reduce(head, part, found) for part in (consumers[:half], consumers[half:])]
            both = [a | b for a, b in product(*parts)]
            return self._best([*parts[0], *parts[1], *both])
        choices = [[frozenset[int](), *found[c]] for c in consumers]
        return self._best([head.union(*combination) for combination in product(*choices)])

    def _best(self, patterns: Iterable[Pattern]) -> list[Pattern]:
        scored = [(score, p) for p in dict.fromkeys(patterns) if (score := self.score(p)) is not None]
        return [p for _, p in sorted(scored, key=lambda pair: -pair[0])[:TOP]]

    def plan(self) -> list[Pattern]:
        """Disjoint patterns that cover every operator, in an order in which they can run."""
        beam: list[_PartialPlan] = [_PartialPlan(0.0, None, frozenset(), 0)]
        for choices in self.candidates():
            grown = list(beam)
            for plan in beam:
                for pattern in choices:
                    score, bits = self.score(pattern) or 0.0, as_bits(pattern)
                    if len(pattern) > 1 and score > 0 and not bits & plan.covered:
                        grown.append(_PartialPlan(plan.score + score, plan, pattern, plan.covered | bits))
            grown.sort(key=lambda plan: -plan.score)
            beam = grown[:BEAM]
        plans = [ordered for plan in beam if (ordered := self._joined(plan.patterns(), plan.covered)) is not None]
        return min(plans or [[frozenset([i]) for i in range(len(self.ops))]], key=self._plan_ns)

    def _joined(self, patterns: Sequence[Pattern], covered: int) -> list[Pattern] | None:
        """Patterns with the operators that none covers; None where patterns wait for each other.

        A pattern grows from its one producer, so it misses the other producers of what it holds: neighbours are
        joined as long as that gains.
        """
        whole = [*patterns, *(frozenset([i]) for i in range(len(self.ops)) if not covered >> i & 1)]
        at = {i: pattern for pattern in whole for i in pattern}
        for i, producers in enumerate(self.producers):
            for producer in producers:
                one, other = at[producer], at[i]
                both = one | other
                if one != other and (score := self.score(both)) is not None:
                    apart = sum(self.score(p) or 0.0 for p in (one, other))
                    if score > apart and self.order([*({*at.values()} - {one, other}), both]) is not None:
                        at |= dict.fromkeys(both, both)
        return self.order(list(dict.fromkeys(at.values())))

    def order(self, patterns: Sequence[Pattern]) -> list[Pattern] | None:
        """Patterns in an order in which they can run; None where they wait for each other."""
        return runnable_order(patterns, self.before)

    def _plan_ns(self, patterns: Sequence[Pattern]) -> float:
        return plan_ns([self.program(p) for p in patterns])

    def packed(self, plan: Sequence[Pattern]) -> list[list[Pattern]]:
        """Remote fusion: small patterns that do not depend on each other share a kernel."""
        groups: list[list[Pattern]] = []
        for start in range(0, len(plan), STRETCH):
            stretch = plan[start : start + STRETCH]
            needed = [union(self.before, pattern) for pattern in stretch]
            others = [as_bits(pattern) for pattern in stretch]
            needs = [
                as_bits(j for j, bits in enumerate(others) if j != i and needed[i] & bits) for i in range(len(stretch))
            ]
            is_small = [self._plan_ns([pattern]) < SMALL_NS for pattern in stretch]
            found = group_patterns(needs, is_small, lambda group: (len(group) - 1) * LAUNCH_NS)
            groups += [[stretch[i] for i in group] for group in found]
        return groups
