"""Evaluates many predicate lists on pairs of rows, pair by pair, until no query can use the pair any more.

`operators.juggler.predicates.compiled_lists` calls `through`. `kernels.juggler.narrow` evaluates one list on all
tuples; `through` evaluates all lists of a type on one pair. A list that few queries contain costs a check of the words
that hold the bits of those queries. Values are read from the rows' fields, and only for lists that some query still
needs. Lists are laid out one after the other:

    lists[l] = (op, whole, field of x, whether x is b's, field of y or -1, whether y is b's, first block, last block)
    words[words_at[l] : words_at[l + 1]] are the words with queries that contain list l, asking[...] their bits there
    blocks[k] = (first position, last position, where its rows of `before` and `after` begin)

`before` and `after` are those of `kernels.juggler`, restricted to a list's words. Doubles are stored in the same 8
bytes as whole numbers; factors, divisors and addends are passed in both types.
"""

from __future__ import annotations

import numpy as np

from operators.kernels.hashing import F64, U64
from operators.kernels.juggler import _holding
from schemas.columns import I64
from schemas.compiled import compiled, inlined

COUNTED_EVERY = 16
"""One of this many pairs counts in the statistics that order the lists."""


@inlined
def _bits(word):  # type: ignore[no-untyped-def]
    """How many bits are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@compiled
def through(
    probe: I64,
    rows_a: I64,
    rows_b: I64,
    alive_a: U64,
    alive_b: U64,
    with_b: bool,
    mask: U64,
    ints_a: I64,
    floats_a: F64,
    nulls_a: U64,
    ints_b: I64,
    floats_b: F64,
    nulls_b: U64,
    order: I64,
    lists: I64,
    words_at: I64,
    words: I64,
    asking: U64,
    blocks: I64,
    int_lines: I64,
    float_lines: F64,
    int_addends: I64,
    float_addends: F64,
    before: U64,
    after: U64,
    tried: I64,
    gone: I64,
    out_at: I64,
    out_alive: U64,
) -> tuple[int, int, int, int]:
    """Select the pairs that some query can use after all lists.

    Args:
        probe: (n,) positions in rows_a and alive_a.
        rows_a: (m,) row ids.
        rows_b: (n,) row ids.
        alive_a: (m, words) the queries that rows of a may satisfy.
        alive_b: (capacity, words) those of b by row; read only if `with_b`.
        mask: (words,) the queries to consider.
        ints_a, floats_a: (capacity, fields) values by row, two views of the same memory; likewise for b.
        nulls_a: (capacity,) one bit per field, set where the value is null; likewise for b.
        order: the numbers of the lists in the order of evaluation.
        lists, words_at, words, asking, blocks, before, after: see above.
        int_lines, float_lines: (blocks, 2) divisor and factor; the divisor of doubles is 1.
        int_addends, float_addends: the addends by position.
        tried, gone: (lists,) for a sample of pairs, pairs evaluated and queries removed; increased.
        out_at, out_alive: (n,) and (n, words), filled with the positions of the selected pairs, and their queries.

    Returns:
        The numbers of pairs written, of pairs that some query wanted before, of predicate evaluations, and of
        operations on words.
    """
    wide = alive_a.shape[1]
    left = np.empty(wide, np.uint64)
    slots_a, slots_b = ints_a.shape[0] - 1, ints_b.shape[0] - 1
    none = np.uint64(0)
    count = entered = compared = touched = 0
    for c in range(rows_b.shape[0]):
        p = probe[c]
        a, b = rows_a[p] & slots_a, rows_b[c] & slots_b
        some = none
        for w in range(wide):
            word = alive_a[p, w] & mask[w]
            if with_b:
                word &= alive_b[b, w]
            left[w] = word
            some |= word
        if some == none:
            continue
        entered += 1
        living = True
        counted = c % COUNTED_EVERY == 0
        for k in range(order.shape[0]):
            number = order[k]
            first_word, last_word = words_at[number], words_at[number + 1]
            some = none
            for j in range(first_word, last_word):
                some |= left[words[j]] & asking[j]
            touched += last_word - first_word
            if some == none:
                continue
            op, whole = lists[number, 0], lists[number, 1]
            x, x_of_b, y, y_of_b = lists[number, 2], lists[number, 3], lists[number, 4], lists[number, 5]
            null = ((nulls_b[b] if x_of_b else nulls_a[a]) >> np.uint64(x)) & np.uint64(1)
            if y >= 0:
                null |= ((nulls_b[b] if y_of_b else nulls_a[a]) >> np.uint64(y)) & np.uint64(1)
            if counted:
                tried[number] += 1
            lost = none
            many = last_word - first_word
            for block in range(lists[number, 6], lists[number, 7]):
                begin, end, covers = blocks[block, 0], blocks[block, 1], blocks[block, 2]
                if lists[number, 7] - lists[number, 6] > 1:
                    some = none
                    for j in range(many):
                        some |= left[words[first_word + j]] & after[covers + j]
                    if some == none:
                        continue
                if null:
                    first, last = end, end
                elif whole:
                    left_side = int_lines[block, 0] * (ints_b[b, x] if x_of_b else ints_a[a, x])
                    base = np.int64(0)
                    if y >= 0:
                        base = int_lines[block, 1] * (ints_b[b, y] if y_of_b else ints_a[a, y])
                    first, last, steps = _holding(op, left_side, base, int_addends, begin, end)
                    compared += steps
                else:
                    left_real = floats_b[b, x] if x_of_b else floats_a[a, x]
                    real = 0.0
                    if y >= 0:
                        real = float_lines[block, 1] * (floats_b[b, y] if y_of_b else floats_a[a, y])
                    first, last, steps = _holding(op, left_real, real, float_addends, begin, end)
                    compared += steps
                if first == begin and last == end:
                    continue
                head, tail = covers + (first - begin) * many, covers + (last - begin) * many
                for j in range(many):
                    word = left[words[first_word + j]] & (before[head + j] | after[tail + j])
                    lost |= word
                    left[words[first_word + j]] &= ~word
                    if counted:
                        gone[number] += np.int64(_bits(word))
                touched += 2 * many
            if lost == none:
                continue
            some = none
            for w in range(wide):
                some |= left[w]
            if some == none:
                living = False
                break
        if living:
            out_at[count] = c
            for w in range(wide):
                out_alive[count, w] = left[w]
            count += 1
    return count, entered, compared, touched
