"""Decides about single records whether a condition holds for them: no object of Python for each.

A predicate is a tree in tuples of Python, which `storage.condition` makes:

    ("every", part, …)                            all parts hold
    ("any", part, …)                              one of the parts holds
    ("within", column, low, high, low, high, …)   a number, in intervals with both ends
    ("among", column, header, is_not, bytes, …)   bytes, compared with some in rising order
    ("ordered", column, header, order, bytes)     order: "<", "<=", ">" or ">="
    ("like", column, header, is_not, fewest, token, …)
                                                  token: bytes, "_" a character, "%" any bytes;
                                                  `fewest`: the minimum of characters
    ("contains", column, header, is_not, fold, whole, bytes, …)
                                                  one of the bytes, as `LC_ALL=C grep -F` finds them
                                                  (`fold`: -i, with bytes in lower case; `whole`: -w)
    ("null", column, header, is_not)

Columns are "offset", "timestamp" (in ms) and "timestampType"; "key", "value" and "header". The
value of a header is that of the record's last one with this name, and null where there is none.
Null is in no comparison, whatever `is_not` says; "contains" takes null for no bytes. A character is one of UTF-8, or as many malformed
bytes as become one U+FFFD in Java; but `fewest` are counted as Spark counts them, by what the first
byte of each says.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport abs, free, realloc
from libc.string cimport memcmp, memcpy

from storage.record._batch cimport (
    ATTRIBUTES, BAD_HEADERS, HEADER_SIZE, NO_FAULT, RECORDS_COUNT, TRANSACTIONAL_BIT, Fault, Fields,
    PinnedBuffer, RecordHead, bounded_varint, headers_fill, hold, read_fields, read_head, store32,
)
from storage.record._utf8 cimport sequence_at
from storage.record._write cimport seal

from storage.record._batch import refusal


cdef extern from "storage/record/columns/search.h":
    const uint8_t *find "kafkafs_find"(
        const uint8_t *at, const uint8_t *end, const uint8_t *needle, int64_t size
    ) noexcept nogil
    const uint8_t *find_folded "kafkafs_find_folded"(
        const uint8_t *at, const uint8_t *end, const uint8_t *needle, int64_t size
    ) noexcept nogil
    bint is_of_word "kafkafs_is_of_word"(uint8_t byte) noexcept nogil
    void fill_borders "kafkafs_fill_borders"(
        const uint8_t *needle, int64_t size, int32_t *borders
    ) noexcept nogil
    bint has_whole "kafkafs_has_whole"(
        const uint8_t *start, const uint8_t *end, const uint8_t *needle, int64_t size,
        const int32_t *borders, bint fold
    ) noexcept nogil
    int64_t COMPARED "KAFKAFS_COMPARED"


cdef enum:
    DEEPEST = 200
    # If bytes are compared with more than these, a batch is not searched for them first.
    MOST_SEARCHED = 8

    EVERY = 0
    ANY
    WITHIN
    AMONG
    LESS
    LESS_OR_SAME
    MORE
    MORE_OR_SAME
    LIKE
    CONTAINS
    IS_NULL

    OFFSET = 0
    TIMESTAMP
    TIMESTAMP_TYPE
    KEY
    VALUE
    HEADER

    # Sizes of runs that are tokens of a pattern.
    ONE_CHARACTER = -1
    ANY_BYTES = -2


KINDS = {
    "every": EVERY, "any": ANY, "within": WITHIN, "among": AMONG, "like": LIKE,
    "contains": CONTAINS, "null": IS_NULL,
}
ORDERS = {"<": LESS, "<=": LESS_OR_SAME, ">": MORE, ">=": MORE_OR_SAME}
COLUMNS = {
    "offset": OFFSET, "timestamp": TIMESTAMP, "timestampType": TIMESTAMP_TYPE,
    "key": KEY, "value": VALUE, "header": HEADER,
}


cdef class Predicate:
    """See the module. Errors: ValueError for a tree of more than DEEPEST levels."""

    def __cinit__(self, tuple part not None):
        self.kept = []
        if depth(part) > DEEPEST:
            raise ValueError("the condition is nested too deeply")
        self.add(part)

    def __dealloc__(self):
        free(self.nodes)
        free(self.children)
        free(self.runs)
        free(self.bounds)

    cdef int32_t add(self, tuple part) except -1:
        """Add a part; returns the number of its node."""
        cdef int32_t number = self.used
        cdef Node node
        cdef int32_t child
        self.nodes = <Node *> grown(self.nodes, sizeof(Node) * (self.used + 1))
        self.used += 1
        node.column, node.header, node.is_not, node.count, node.fewest = 0, 0, False, 0, 0
        node.fold = node.whole = False
        kind = part[0]
        node.kind = ORDERS[part[3]] if kind == "ordered" else KINDS[kind]
        if node.kind == EVERY or node.kind == ANY:
            added = [self.add(each) for each in part[1:]]
            node.first, node.count = self.children_used, <int32_t> len(added)
            self.children = <int32_t *> grown(
                self.children, sizeof(int32_t) * (self.children_used + node.count + 1)
            )
            for child in added:
                self.children[self.children_used] = child
                self.children_used += 1
        else:
            node.column = COLUMNS[part[1]]
            if node.kind == WITHIN:
                node.first, node.count = self.bounds_used, <int32_t> len(part) - 2
                self.bounds = <int64_t *> grown(
                    self.bounds, sizeof(int64_t) * (self.bounds_used + node.count + 1)
                )
                for bound in part[2:]:
                    self.bounds[self.bounds_used] = bound
                    self.bounds_used += 1
            else:
                node.header = self.add_run(part[2])
                node.first = self.runs_used
                node.is_not = kind != "ordered" and part[3]
                operands = part[4:]
                if node.kind == LIKE:
                    node.fewest, operands = part[4], part[5:]
                elif node.kind == CONTAINS:
                    node.fold, node.whole, operands = part[4], part[5], part[6:]
                for run in operands:
                    self.add_run(run)
                    node.count += 1
                    if node.whole and len(run) > COMPARED:
                        self.add_borders(&self.runs[self.runs_used - 1])
        self.nodes[number] = node
        return number

    cdef int32_t add_run(self, object data) except -1:
        cdef int32_t number = self.runs_used
        self.runs = <Run *> grown(self.runs, sizeof(Run) * (number + 1))
        self.runs[number].borders = NULL
        if isinstance(data, str):
            self.runs[number].start = NULL
            self.runs[number].size = ANY_BYTES if data == "%" else ONE_CHARACTER
        else:
            self.kept.append(data)
            self.runs[number].start = <const uint8_t *> <const char *> (<bytes> data)
            self.runs[number].size = len(data)
        self.runs_used += 1
        return number

    cdef int add_borders(self, Run *run) except -1:
        cdef bytearray borders = bytearray(run.size * sizeof(int32_t))
        self.kept.append(borders)
        fill_borders(run.start, run.size, <int32_t *> PyByteArray_AS_STRING(borders))
        run.borders = <const int32_t *> PyByteArray_AS_STRING(borders)
        return 0

    cdef bint holds(self, const Subject *subject) noexcept nogil:
        """Whether the condition is true for the record."""
        return evaluate(self.nodes, self.children, self.runs, self.bounds, 0, subject)

    cdef bint may_hold(self, const Limits *limits) noexcept nogil:
        """Whether the condition may be true for any record of a batch."""
        return is_possible(self.nodes, self.children, self.bounds, 0, limits)

    cdef bint may_hold_in(self, const uint8_t *start, int64_t size) noexcept nogil:
        """Whether the condition may be true for any record in these bytes of a plain batch."""
        cdef Run bytes_
        bytes_.start, bytes_.size = start, size
        return is_findable(self.nodes, self.children, self.runs, 0, &bytes_)


def matches(tuple part not None, key):
    """Whether a part holds for a record with this key, bytes or None, and without anything else."""
    cdef Predicate predicate = Predicate(part)
    cdef Subject subject
    cdef PinnedBuffer held
    cdef const uint8_t *no_headers = b"\0"
    subject.offset = subject.timestamp = 0
    subject.timestamp_type = 0
    subject.value_length = subject.key_length = -1
    subject.headers, subject.end = no_headers, no_headers + 1
    if key is not None:
        held = hold(key)
        subject.key, subject.key_length = held.start, <int32_t> held.size
    return predicate.holds(&subject)


def kept(
    batch not None, Predicate predicate not None, long long from_offset, long long to_offset,
    bint without_times=False, int32_t most=INT32_MAX,
):
    """The batch with only those records of from_offset <= offset < to_offset for which it holds,
    the first `most` of them.

    The batch is in plain form; the new one is of no transaction. Returns None where no record is
    left. Raises CorruptRecord, but not for a batch without the bytes that the predicate searches
    for, and not for records after the first `most`: these are not read.
    """
    cdef PinnedBuffer held = hold(batch)
    cdef bytearray made
    cdef uint8_t *out
    cdef int64_t used = HEADER_SIZE
    cdef int64_t at = HEADER_SIZE
    cdef int32_t count = 0
    cdef RecordHead head
    cdef Fields fields
    cdef Subject subject
    cdef Fault fault
    if held.size < HEADER_SIZE:
        raise ValueError(f"a batch of {held.size} bytes")
    if not predicate.may_hold_in(held.start + HEADER_SIZE, held.size - HEADER_SIZE):
        return None
    made = PyByteArray_FromStringAndSize(NULL, held.size)
    out = <uint8_t *> PyByteArray_AS_STRING(made)
    memcpy(out, held.start, HEADER_SIZE)
    while at < held.size and count < most:
        fault = read_head(held.start + at, held.size - at, held.size - at, &head)
        if fault == NO_FAULT:
            fault = read_fields(held.start + at, &head, &fields)
        if fault == NO_FAULT and not headers_fill(fields.headers, fields.end):
            fault = BAD_HEADERS
        if fault != NO_FAULT:
            raise refusal(fault, at)
        subject = subject_of(held.start, without_times, &head, &fields)
        if from_offset <= subject.offset < to_offset and predicate.holds(&subject):
            memcpy(out + used, held.start + at, head.size)
            used += head.size
            count += 1
        at += head.size
    if not count:
        return None
    out[ATTRIBUTES + 1] &= <uint8_t> ~TRANSACTIONAL_BIT
    store32(out + RECORDS_COUNT, count)
    seal(out, used)
    PyByteArray_Resize(made, used)
    return made


def depth(part):
    """How many levels a tree has."""
    levels, some = 0, [part]
    while some:
        levels += 1
        some = [each for node in some if node[0] in ("every", "any") for each in node[1:]]
    return levels


cdef void *grown(void *block, size_t size) except NULL:
    cdef void *made = realloc(block, size)
    if made == NULL:
        raise MemoryError
    return made


cdef bint evaluate(
    const Node *nodes, const int32_t *children, const Run *runs, const int64_t *bounds,
    int32_t number, const Subject *subject,
) noexcept nogil:
    cdef const Node *node = &nodes[number]
    cdef int32_t each
    cdef int64_t value
    cdef Run run
    if node.kind == EVERY:
        for each in range(node.first, node.first + node.count):
            if not evaluate(nodes, children, runs, bounds, children[each], subject):
                return False
        return True
    if node.kind == ANY:
        for each in range(node.first, node.first + node.count):
            if evaluate(nodes, children, runs, bounds, children[each], subject):
                return True
        return False
    if node.kind == WITHIN:
        if node.column == OFFSET:
            value = subject.offset
        elif node.column == TIMESTAMP:
            value = subject.timestamp
        else:
            value = subject.timestamp_type
        return meets(bounds, node, value, value)
    if node.column == KEY:
        run.start, run.size = subject.key, subject.key_length
    elif node.column == VALUE:
        run.start, run.size = subject.value, subject.value_length
    else:
        find_header(subject, &runs[node.header], &run)
    if node.kind == IS_NULL:
        return (run.size < 0) != node.is_not
    if node.kind == CONTAINS:
        return contains(node, &runs[node.first], &run) != node.is_not
    if run.size < 0:
        return False
    if node.kind == AMONG:
        return is_among(&runs[node.first], node.count, &run) != node.is_not
    if node.kind == LIKE:
        return (
            is_like(&runs[node.first], node.count, run.start, run.start + run.size)
            and (node.fewest == 0 or has_characters(&run, node.fewest))
        ) != node.is_not
    return is_ordered(node.kind, compare(&run, &runs[node.first]))


cdef bint is_possible(
    const Node *nodes, const int32_t *children, const int64_t *bounds, int32_t number,
    const Limits *limits,
) noexcept nogil:
    cdef const Node *node = &nodes[number]
    cdef int32_t each
    if node.kind == EVERY:
        for each in range(node.first, node.first + node.count):
            if not is_possible(nodes, children, bounds, children[each], limits):
                return False
        return True
    if node.kind == ANY:
        for each in range(node.first, node.first + node.count):
            if is_possible(nodes, children, bounds, children[each], limits):
                return True
        return False
    if node.kind != WITHIN:
        return True
    if node.column == OFFSET:
        return meets(bounds, node, limits.first_offset, limits.last_offset)
    if node.column == TIMESTAMP:
        return meets(bounds, node, limits.first_timestamp, limits.last_timestamp)
    return meets(bounds, node, limits.timestamp_type, limits.timestamp_type)


cdef bint is_findable(
    const Node *nodes, const int32_t *children, const Run *runs, int32_t number, const Run *run
) noexcept nogil:
    """Whether the bytes of a batch have what a record must have if the condition holds for it."""
    cdef const Node *node = &nodes[number]
    cdef int32_t each
    if node.kind == EVERY:
        for each in range(node.first, node.first + node.count):
            if not is_findable(nodes, children, runs, children[each], run):
                return False
        return True
    if node.kind == ANY:
        for each in range(node.first, node.first + node.count):
            if is_findable(nodes, children, runs, children[each], run):
                return True
        return False
    if node.is_not:
        return True
    if node.kind == LIKE:
        for each in range(node.first, node.first + node.count):
            if runs[each].size > 0 and not place_in(run, &runs[each], False):
                return False
        return True
    if node.kind == CONTAINS or (node.kind == AMONG and node.count <= MOST_SEARCHED):
        for each in range(node.first, node.first + node.count):
            if place_in(run, &runs[each], node.fold):
                return True
        return False
    return True


cdef inline bint place_in(const Run *run, const Run *needle, bint fold) noexcept nogil:
    """Whether the needle is anywhere in the bytes."""
    cdef const uint8_t *end = run.start + run.size
    if fold:
        return find_folded(run.start, end, needle.start, needle.size) != NULL
    return find(run.start, end, needle.start, needle.size) != NULL


cdef bint contains(const Node *node, const Run *needles, const Run *run) noexcept nogil:
    cdef const uint8_t *nothing = b""
    cdef const uint8_t *start = run.start if run.size > 0 else nothing
    cdef const uint8_t *end = start + max(run.size, 0)
    cdef const uint8_t *at
    cdef const Run *needle
    cdef int32_t each
    for each in range(node.count):
        needle, at = &needles[each], start
        if needle.borders != NULL:
            if has_whole(start, end, needle.start, needle.size, needle.borders, node.fold):
                return True
            continue
        while True:
            if node.fold:
                at = find_folded(at, end, needle.start, needle.size)
            else:
                at = find(at, end, needle.start, needle.size)
            if at == NULL:
                break
            if not node.whole or (
                (at == start or not is_of_word(at[-1]))
                and (at + needle.size == end or not is_of_word(at[needle.size]))
            ):
                return True
            if at == end:
                break
            # Go on behind the rest of this word: nothing in it begins a word.
            at += 1
            while at < end and is_of_word(at[-1]):
                at += 1
    return False


cdef inline bint meets(
    const int64_t *bounds, const Node *node, int64_t first, int64_t last
) noexcept nogil:
    """Whether one of the node's intervals has a number from `first` to `last`."""
    cdef int32_t low = 0
    cdef int32_t high = node.count >> 1
    cdef int32_t middle
    # The first interval that ends at or behind `first`.
    while low < high:
        middle = (low + high) >> 1
        if bounds[node.first + 2 * middle + 1] < first:
            low = middle + 1
        else:
            high = middle
    return low < node.count >> 1 and bounds[node.first + 2 * low] <= last


cdef inline int compare(const Run *one, const Run *other) noexcept nogil:
    """Below, at or above 0, as unsigned bytes compare."""
    cdef int64_t size = min(one.size, other.size)
    cdef int found = memcmp(one.start, other.start, size) if size else 0
    if found:
        return found
    return (one.size > other.size) - (one.size < other.size)


cdef inline bint is_ordered(int32_t kind, int found) noexcept nogil:
    if kind == LESS:
        return found < 0
    if kind == LESS_OR_SAME:
        return found <= 0
    return found > 0 if kind == MORE else found >= 0


cdef inline bint is_among(const Run *runs, int32_t count, const Run *run) noexcept nogil:
    cdef int32_t low = 0
    cdef int32_t high = count
    cdef int32_t middle
    cdef int found
    if count == 1:
        return runs.size == run.size and (
            not run.size or memcmp(runs.start, run.start, run.size) == 0
        )
    while low < high:
        middle = (low + high) >> 1
        found = compare(&runs[middle], run)
        if found == 0:
            return True
        if found < 0:
            low = middle + 1
        else:
            high = middle
    return False


cdef inline void find_header(const Subject *subject, const Run *name, Run *found) noexcept nogil:
    """The value of the last header with this name; a size of -1: null, or there is none."""
    cdef const uint8_t *at
    cdef int32_t count = 0
    cdef int32_t length = 0
    cdef int32_t left
    cdef bint is_it
    found.size = -1
    found.start = NULL
    at = bounded_varint(subject.headers, subject.end, &count)
    for left in range(count):
        at = bounded_varint(at, subject.end, &length)
        is_it = length == name.size and memcmp(at, name.start, length) == 0
        at = bounded_varint(at + length, subject.end, &length)
        if is_it:
            found.start, found.size = at, length
        at += max(length, 0)


cdef inline int64_t character(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """How many bytes the character at `at` has, or the malformed bytes that count as one."""
    return 1 if at[0] < 0x80 else abs(sequence_at(at, end - at))


cdef bint has_characters(const Run *run, int64_t fewest) noexcept nogil:
    """Whether there are so many, by their first bytes (Spark: UTF8String.numBytesForFirstByte)."""
    cdef int64_t at = 0
    cdef uint8_t first
    while at < run.size and fewest > 0:
        first = run.start[at]
        fewest -= 1
        if first < 0xc2 or first > 0xf4:
            at += 1
        elif first < 0xe0:
            at += 2
        else:
            at += 3 if first < 0xf0 else 4
    return fewest <= 0


cdef bint is_like(
    const Run *tokens, int32_t count, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Whether bytes match a pattern, in which no two `%` follow each other.

    What comes behind a `%` is looked for from there on, and where the rest does not fit, again from
    the next place on. It is enough to go back to the last `%`: what is before it fits as early as
    can be.
    """
    cdef int32_t token = 0
    cdef int32_t star = -1
    cdef const uint8_t *again = at
    cdef const Run *run
    while True:
        run = &tokens[token]
        if token == count:
            if at == end:
                return True
        elif run.size == ANY_BYTES:
            star = token
            token += 1
            if token == count:
                return True
            again = at
            if not place_of(tokens, token, count, &again, end):
                return False
            at = again
            continue
        elif run.size == ONE_CHARACTER:
            if at < end:
                at += character(at, end)
                token += 1
                continue
        elif end - at >= run.size and memcmp(at, run.start, run.size) == 0:
            at += run.size
            token += 1
            continue
        if star < 0 or again >= end:
            return False
        again += character(again, end) if tokens[star + 1].size == ONE_CHARACTER else 1
        token = star + 1
        if not place_of(tokens, token, count, &again, end):
            return False
        at = again


cdef inline bint place_of(
    const Run *tokens, int32_t token, int32_t count, const uint8_t **at, const uint8_t *end
) noexcept nogil:
    """Go on to where bytes behind a `%` may begin; False if they are nowhere."""
    cdef const Run *run = &tokens[token]
    if run.size < 0:
        return True
    if token + 1 == count:
        # The last ones lie at the end.
        if end - at[0] < run.size:
            return False
        at[0] = end - run.size
        return True
    at[0] = find(at[0], end, run.start, run.size)
    return at[0] != NULL
