"""Two guesses made one. Knows no drafter and no price."""

from worker.speculation.tree import DraftTree, Source, ordered


def merge(one: DraftTree, other: DraftTree) -> DraftTree:
    """A tree with the paths of both, which stand on the same root.

    A node of both keeps the higher score and both sources. Scores that fall along the paths of both
    fall along those of the merged tree.
    """
    assert one.tokens[0] == other.tokens[0], "trees of different roots"
    tokens, parents = list(one.tokens), list(one.parents)
    scores, sources = list(one.scores), list(one.sources)
    children = {(parents[node], token): node for node, token in enumerate(tokens)}
    place: list[int] = []  # of each node of the other
    for node, token in enumerate(other.tokens):
        parent = place[other.parents[node]] if node else -1
        known = children.get((parent, token))
        if known is None:
            known = children[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            scores.append(other.scores[node])
            sources.append(other.sources[node])
        else:
            scores[known] = max(scores[known], other.scores[node])
            sources[known] = Source(sources[known] | other.sources[node])
        place.append(known)
    return ordered(tokens, parents, scores, sources)
