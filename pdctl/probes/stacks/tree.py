"""Merges stacks into one tree: frames that ranks have in common once, with who has them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdctl.probes.stacks.model import TreeFrame, TreeNode
from pdctl.probes.stacks.moves import IDLE, MIXED, MOVING, STUCK
from pdctl.protocol.model import Frame
from pdctl.targets.nodeset import numbers


@dataclass(frozen=True)
class Stack:
    """One rank's frames, outermost first, and how many of them stayed in all looks; -1 where it had one look only.

    idle: they stayed because there is nothing to do.
    """

    rank: int
    frames: tuple[Frame, ...]
    stayed: int = -1
    idle: bool = False


@dataclass
class _Branch:
    members: list[Stack] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    below: dict[tuple[str, str], _Branch] = field(default_factory=dict)


def merge(stacks: Sequence[Stack], fold: Callable[[Sequence[int]], str]) -> tuple[TreeNode, ...]:
    """Return the merged tree, most ranks first. fold: names ranks given by number."""
    root = _Branch()
    for stack in stacks:
        branch = root
        for frame in stack.frames:
            branch = branch.below.setdefault((frame.function, frame.file), _Branch())
            branch.members.append(stack)
            branch.lines.add(frame.line)
    return _children(root, 0, fold)


def _children(branch: _Branch, depth: int, fold: Callable[[Sequence[int]], str]) -> tuple[TreeNode, ...]:
    nodes = [_node(key, below, depth + 1, fold) for key, below in branch.below.items()]
    return tuple(sorted(nodes, key=lambda node: (-node.count, node.ranks)))


def _node(key: tuple[str, str], branch: _Branch, depth: int, fold: Callable[[Sequence[int]], str]) -> TreeNode:
    members = branch.members
    frames = [_frame(key, branch, depth)]
    while len(branch.below) == 1:
        [(key, below)] = branch.below.items()
        if len(below.members) < len(members):
            break  # some ranks end here
        branch, depth = below, depth + 1
        frames.append(_frame(key, branch, depth))
    ranks = fold(sorted(stack.rank for stack in members))
    children = _children(branch, depth, fold)
    ends = fold(sorted(stack.rank for stack in members if len(stack.frames) == depth)) if children else ""
    return TreeNode(ranks, len(members), tuple(frames), children, ends)


def _frame(key: tuple[str, str], branch: _Branch, depth: int) -> TreeFrame:
    seen = {
        IDLE if stack.idle else STUCK if stack.stayed >= depth else MOVING
        for stack in branch.members
        if stack.stayed >= 0
    }
    moves = MIXED if len(seen) > 1 else "".join(seen)
    return TreeFrame(*key, numbers(branch.lines), moves)
