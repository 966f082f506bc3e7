"""All tokens as a tree of bytes in arrays, so that common prefixes are examined once."""

from collections.abc import Sequence

import numpy as np

Ints = np.ndarray[tuple[int], np.dtype[np.int32]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class TokenTrie:
    """Nodes are numbered level by level, so that the children of a node stand side by side.

    Node 0 is the empty text; tokens without text, or with a zero byte in it, are nowhere.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Build the tree: 60 ms for 49,152 tokens."""
        self.node_of = np.zeros(len(pieces), np.int32)
        """Token -> the node of its text; 0 for tokens that no grammar allows."""
        order = sorted(
            (token for token, piece in enumerate(pieces) if piece and 0 not in piece),
            key=pieces.__getitem__,
        )
        data = np.frombuffer(b"".join([pieces[token] for token in order]), np.uint8)
        lengths = np.array([len(pieces[token]) for token in order], np.int64)
        starts = np.cumsum(lengths) - lengths
        levels_of_bytes = [np.zeros(1, np.uint8)]
        n_children: list[Ints] = []
        nodes = np.zeros(len(order), np.int64)  # of the texts so far, within their level
        tokens = np.array(order, np.int64)
        n_nodes, n_level = 1, 1
        depth = 0
        while len(tokens):
            bytes_here = data[starts + depth]
            is_new = np.ones(len(tokens), bool)
            is_new[1:] = (nodes[1:] != nodes[:-1]) | (bytes_here[1:] != bytes_here[:-1])
            n_children.append(np.bincount(nodes[is_new], minlength=n_level).astype(np.int32))
            levels_of_bytes.append(bytes_here[is_new])
            nodes = np.cumsum(is_new) - 1
            n_level = int(is_new.sum())
            depth += 1
            ends = lengths == depth
            self.node_of[tokens[ends]] = n_nodes + nodes[ends]
            n_nodes += n_level
            rest = ~ends
            tokens, nodes = tokens[rest], nodes[rest]
            starts, lengths = starts[rest], lengths[rest]
        n_children.append(np.zeros(n_level, np.int32))
        self.bytes: Bytes = np.concatenate(levels_of_bytes)
        """Node -> the byte that leads to it."""
        self.n_children: Ints = np.concatenate(n_children)
        self.first_child: Ints = (1 + np.cumsum(self.n_children) - self.n_children).astype(np.int32)
        self.n_nodes = n_nodes

    def children(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the children of nodes, and of each the index of its parent among `nodes`."""
        counts = self.n_children.take(nodes)
        parents = np.arange(len(nodes), dtype=np.int32).repeat(counts)
        before: Ints = counts.cumsum(dtype=np.int32) - counts
        shift: Ints = self.first_child.take(nodes) - before
        found: Ints = np.arange(len(parents), dtype=np.int32) + shift.take(parents)
        return found, parents
