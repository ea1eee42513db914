"""Draft trees as parents alone: of each row the row it stands on. Knows no token and no model."""

import random

KINDS = ("chain", "star", "random")


def parents_of(kind: str, count: int) -> list[int]:
    """The rows of a tree in depth-first order, always the same; -1 for the root."""
    if kind == "chain":
        return list(range(-1, count - 1))
    if kind == "star":
        return [-1, *[0] * (count - 1)]
    return random_parents(count, random.Random(count))


def random_parents(count: int, coin: random.Random) -> list[int]:
    """A tree of any shape; each row stands on the one before it or above that."""
    parents, path = [-1], [0]  # path: from the root to the row before
    bushy = coin.random()  # between a chain and short branches
    for row in range(1, count):
        if coin.random() < bushy:
            del path[coin.randint(1, len(path)) :]
        parents.append(path[-1])
        path.append(row)
    return parents


def path_to(row: int, parents: list[int]) -> list[int]:
    """The rows from the root down to one."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def leaves(parents: list[int]) -> list[int]:
    """The rows that nothing stands on."""
    return sorted(set(range(len(parents))) - set(parents))
