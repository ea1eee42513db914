"""How far two sequences are the same. Knows nothing of what they hold."""

from typing import TypeVar

Text = TypeVar("Text", str, list[int], tuple[int, ...])


def shared_length(one: Text, other: Text) -> int:
    """How many characters or ids two sequences have in common at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # by halves: slices are compared at the speed of C
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
