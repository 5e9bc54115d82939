"""A compiled loop (Cython) reads, writes or compares wrong bytes."""

from __future__ import annotations

from tests.faults.fault import Fault

AVRO = "tests/kafkafs/schemas/test_avro.py"
BATCH = "tests/storage/record/test__batch.py"
COLUMNS = "tests/storage/record/columns/test__columns.py"
ROWS = "tests/storage/record/columns/test__rows.py"
KEEP = "tests/storage/compaction/test__keep.py"
OFFSET_MAP = "tests/storage/compaction/test__offset_map.py"
PLAIN = "tests/storage/record/test_plain.py"
STAMP = "tests/storage/record/test__stamp.py"
VIEWS = "tests/kafkafs/views"
WORDS = "tests/storage/words/test_words.py"
WORDS_LOOP = "tests/storage/words/test__words.py"

FAULTS = [
    # -- dump ----------------------------------------------------------------------------------
    Fault(
        "dump-crc-of-a-batch-not-compared",
        "kafkafs/dump/_dump.pyx",
        " size >= HEADER_SIZE and crc_of(at, size) == load32(at + CRC)\n",
        " size >= HEADER_SIZE\n",
        "dump prints `isvalid: true` for a damaged batch.",
        ("tests/interop/test_dump_matches.py", "tests/interop/test_dump_log_segments.py"),
    ),
    Fault(
        "dump-producer-epoch-of-the-wrong-bytes",
        "kafkafs/dump/_dump.pyx",
        "(<int32_t> load32(at + PRODUCER_EPOCH)) >> 16)",
        "(<int32_t> load32(at + PRODUCER_EPOCH)) >> 8)",
        "dump prints a wrong epoch of each producer.",
        ("tests/interop/test_dump_matches.py", "tests/kafkafs/cli/brokers/test_dump.py"),
    ),
    # -- schemas -------------------------------------------------------------------------------
    Fault(
        "avro-negative-block-count-kept",
        "kafkafs/schemas/_avro.pyx",
        "    count[0] = -count[0]\n    return take_long(state, &size)",
        "    count[0] = -count[0]\n    return SOUND",
        "An array whose blocks have sizes is decoded as garbage.",
        (AVRO,),
    ),
    Fault(
        "avro-duration-in-the-wrong-order",
        "kafkafs/schemas/_avro.pyx",
        "b',\"days\":'), little32(at + 4))",
        "b',\"days\":'), little32(at + 8))",
        "A duration shows its milliseconds as days.",
        (AVRO,),
    ),
    # -- views ---------------------------------------------------------------------------------
    Fault(
        "json-lines-log-append-time-called-create-time",
        "kafkafs/views/_json_lines.pyx",
        """    if record.append_time:
        out = put(out, b',"timestampType":"LogAppendTime","key":')
""",
        """    if False:
        out = put(out, b',"timestampType":"LogAppendTime","key":')
""",
        "A line says that its producer set the time that the broker has set.",
        (f"{VIEWS}/test_json_lines.py",),
    ),
    Fault(
        "json-records-time-not-compared-with-the-largest",
        "kafkafs/views/_json_records.pyx",
        "        parsing.max_timestamp = max(parsing.max_timestamp, record.timestamp)\n",
        "        parsing.max_timestamp = record.timestamp\n",
        "A batch whose times fall has a wrong largest time: retention deletes it too early.",
        (f"{VIEWS}/test_json_lines.py",),
    ),
    Fault(
        "key-value-newline-written-as-tab",
        "kafkafs/views/_key_value.pyx",
        'out[1] = c"t" if byte == c"\\t" else c"n" if byte == c"\\n" else c"\\\\"',
        'out[1] = c"t" if byte != c"\\\\" else c"\\\\"',
        "A newline in a value comes back as a tab.",
        (f"{VIEWS}/test_key_value.py",),
    ),
    Fault(
        "measure-copied-cursor-forgets-the-value",
        "kafkafs/views/_measure.pyx",
        "        other.value_left = self.value_left\n",
        "        other.value_left = -1\n",
        "A read that begins inside a long value takes its bytes for a length.",
        (f"{VIEWS}/test__whole.py", "tests/kafkafs/test_line_index.py"),
    ),
    Fault(
        "parse-room-of-a-batch-without-its-header",
        "kafkafs/views/_parse.pyx",
        "    parsing.at.batch_room = limit - HEADER_SIZE\n",
        "    parsing.at.batch_room = limit\n",
        "A batch exceeds max.message.bytes, and the append is refused.",
        (f"{VIEWS}/test__parse.py",),
    ),
    Fault(
        "render-skip-counts-no-newline",
        "kafkafs/views/_render.pyx",
        "            skipping -= value_left + 1\n",
        "            skipping -= value_left\n",
        "A read in the middle begins some bytes too late.",
        (f"{VIEWS}/test__render.py",),
    ),
    Fault(
        "whole-header-of-a-record-not-checked",
        "kafkafs/views/_whole.pyx",
        "    if not headers_fill(fields.headers, fields.end):\n",
        "    if fields.headers > fields.end:\n",
        "The headers of a damaged record are read beyond its end.",
        (f"{VIEWS}/test__whole.py",),
    ),
    # -- compaction ----------------------------------------------------------------------------
    Fault(
        "keep-equal-offset-is-dropped",
        "storage/compaction/_keep.pyx",
        "                    if record.offset < find(map, record.hash):\n",
        "                    if record.offset <= find(map, record.hash):\n",
        "Compaction deletes the newest record of each key.",
        (KEEP,),
    ),
    Fault(
        "keep-tombstones-beyond-the-horizon",
        "storage/compaction/_keep.pyx",
        " if not record.has_value and not tombstones_stay:\n",
        " if not record.has_value and not tombstones_stay and record.offset < 0:\n",
        "Deleted keys stay in the log for ever.",
        (KEEP,),
    ),
    Fault(
        "offset-map-a-key-is-lost-when-it-grows",
        "storage/compaction/_offset_map.pyx",
        "    for i in range(old_room):\n        if old[i].next_offset != 0:\n",
        "    for i in range(1, old_room):\n        if old[i].next_offset != 0:\n",
        "An old value of a key survives each compaction of a large log.",
        (OFFSET_MAP,),
    ),
    Fault(
        "join-largest-time-of-the-first-batch",
        "storage/compaction/_join.pyx",
        "<int64_t> load64(out + MAX_TIMESTAMP), <int64_t> load64(held.start + MAX_TIMESTAMP)\n",
        "<int64_t> load64(out + MAX_TIMESTAMP), <int64_t> load64(out + MAX_TIMESTAMP)\n",
        "A joined batch has a wrong largest time: a start at a time skips its records.",
        ("tests/storage/compaction/test_repack.py",),
    ),
    Fault(
        "join-takes-a-batch-that-overlaps",
        "storage/compaction/_join.pyx",
        "not (last_offset_of(out) < base and 0 <= last - first",
        "not (0 <= last - first",
        "Records of a joined batch have falling offsets, and its CRC is right.",
        ("tests/storage/compaction/test_repack.py",),
    ),
    Fault(
        "join-takes-an-offset-outside-the-batch",
        "storage/compaction/_join.pyx",
        "        if not 0 <= head.offset_delta <= last_delta:\n",
        "        if head.offset_delta < 0:\n",
        "A record has the offset of another, or one that Kafka reads as another number.",
        ("tests/storage/compaction/test_repack.py",),
    ),
    Fault(
        "join-exceeds-the-limit",
        "storage/compaction/_join.pyx",
        "        if fault != NO_FAULT or self.count and used + written > self.limit:\n",
        "        if fault != NO_FAULT or self.count and used > self.limit:\n",
        "A joined batch is larger than max.message.bytes, and consumers cannot fetch it.",
        ("tests/storage/compaction/test_repack.py",),
    ),
    # -- words ---------------------------------------------------------------------------------
    Fault(
        "words-last-one-of-a-field-left-out",
        "storage/words/_words.pyx",
        "    if word != NULL and not words.full:\n",
        "    if False:\n",
        "A search misses records that end with the word, if they have 64 bytes.",
        (WORDS_LOOP,),
    ),
    Fault(
        "words-header-values-left-out",
        "storage/words/_words.pyx",
        "    for left in range(2 * count):\n",
        "    for left in range(count):\n",
        "A search for the value of a header misses records.",
        (WORDS_LOOP, WORDS),
    ),
    Fault(
        "words-characters-of-two-bytes-left-out",
        "storage/words/_words.pyx",
        "            if size > 0:\n",
        "            if size > 2:\n",
        "A search for ä misses all records.",
        (WORDS_LOOP, WORDS),
    ),
    Fault(
        "words-block-with-offsets-of-another",
        "storage/words/_words.pyx",
        "            if not 0 <= head.offset_delta <= last_delta:\n",
        "            if head.offset_delta < 0:\n",
        "A record has an offset outside the block that its words lead to.",
        (WORDS_LOOP,),
    ),
    Fault(
        "words-crowded-bucket-not-marked",
        "storage/words/_words.pyx",
        "            counts[each] = ANY_BLOCK\n",
        "            counts[each] = 0\n",
        "Words in a bucket with too many entries are in no block.",
        (WORDS_LOOP,),
    ),
    Fault(
        "words-entries-of-the-last-part-kept",
        "storage/words/_words.pyx",
        "        self.count = 0\n",
        "        self.count = self.count\n",
        "Each part has the entries of all parts before it.",
        (WORDS_LOOP, WORDS),
    ),
    Fault(
        "words-pages-of-an-older-file",
        "storage/words/_words.pyx",
        "    return crc32c_of(start, size) ^ <uint32_t> (secret + <uint64_t> position)\n",
        "    return crc32c_of(start, size)\n",
        "After a power cut, a page of an older file hides records.",
        (WORDS,),
    ),
    # -- indexes and checked parts --------------------------------------------------------------
    Fault(
        "search-equal-key-not-counted",
        "storage/index/_search.pyx",
        "            if key_at(keys + middle * size, width) <= wanted:\n",
        "            if key_at(keys + middle * size, width) < wanted:\n",
        "A read at an indexed offset walks from the entry before.",
        ("tests/storage/index/test_index.py",),
    ),
    Fault(
        "search-keys-of-four-bytes-unsigned",
        "storage/index/_search.pyx",
        "        return <int32_t> be32toh(half)\n",
        "        return half\n",
        "A negative key of a damaged index counts as a large one.",
        ("tests/storage/index/test_index.py",),
    ),
    Fault(
        "checked-part-forgets-what-it-covers",
        "storage/segment/checked_ranges.pyx",
        "            added.end = self.parts[behind - 1].end\n",
        "            added.end = end\n",
        "Bytes that were checked are checked again at each read.",
        ("tests/storage/segment/test_checked_ranges.py",),
    ),
    # -- formats before v2 ----------------------------------------------------------------------
    Fault(
        "kafka07-crc-not-compared",
        "storage/kafka07/_entries.pyx",
        "    if check_crc and crc32(at + entry.head, entry.size - entry.head) != load32("
        "at + entry.head - 4):\n",
        "    if check_crc and entry.head < 0:\n",
        "Damaged messages of Kafka 0.7 are shown and converted as whole ones.",
        ("tests/storage/kafka07/test_entries.py",),
    ),
    Fault(
        "kafka07-ids-not-kept",
        "storage/kafka07/_entries.pyx",
        "        if numbered:\n            last = taken - at\n",
        "        if numbered:\n            last = 0\n",
        "Messages of Kafka 0.7 have other offsets after they are converted.",
        ("tests/storage/kafka07/test_entries.py",),
    ),
    # -- records -------------------------------------------------------------------------------
    Fault(
        "batch-a-first-batch-before-its-entry-counts",
        "storage/record/_batch.pyx",
        "    if walked.last < 0 or last_offset(data) < named:\n",
        "    if walked.last < 0:\n",
        "An index entry that names a wrong position is trusted.",
        ("tests/storage/segment/test_checked_ranges.py", BATCH),
    ),
    Fault(
        "codec-snappy-size-not-bounded",
        "storage/record/_codec.pyx",
        "            bound += min(<int64_t> <uint32_t> size, ratio * length)\n",
        "            bound += <int64_t> <uint32_t> size\n",
        "A few bytes that claim to be gigabytes make a reader allocate them.",
        ("tests/storage/record/test_compression.py",),
    ),
    Fault(
        "crc-by-table-without-the-first-byte",
        "storage/record/_crc.pyx",
        "            return crc_by_table(<const uint8_t *> view.buf, view.len)\n",
        "            return crc_by_table(<const uint8_t *> view.buf + 1, view.len - 1)\n",
        "Old processors compute other CRCs, so every batch is damaged for brokers.",
        ("tests/storage/record/test__crc.py",),
    ),
    Fault(
        "plain-crc-not-compared",
        "storage/record/_plain.pyx",
        "    if crc_of(batch, size) != load32(batch + CRC):\n        raise",
        "    if size < 0:\n        raise",
        "A damaged compressed batch is decompressed and shown.",
        (PLAIN,),
    ),
    Fault(
        "plain-keeps-the-codec",
        "storage/record/_plain.pyx",
        "    out[ATTRIBUTES + 1] &= <uint8_t> ~CODEC_BITS\n",
        "    out[ATTRIBUTES + 1] &= <uint8_t> ~0\n",
        "Plain records are decompressed once more.",
        (PLAIN,),
    ),
    Fault(
        "route-sign-of-the-hash-kept",
        "storage/record/_route.pyx",
        "(hash_of(record + head.head, head.key_length) & POSITIVE) % (",
        "hash_of(record + head.head, head.key_length) % (",
        "Half of the keys go to other partitions than with Kafka's producers.",
        ("tests/storage/record/test__route.py",),
    ),
    Fault(
        "seek-time-of-a-batch-with-append-time",
        "storage/record/_seek.pyx",
        "        if append_time:\n            found.timestamp",
        "        if append_time and base_offset < 0:\n            found.timestamp",
        "A start at a time finds wrong records in a topic with LogAppendTime.",
        ("tests/storage/record/test__seek.py",),
    ),
    Fault(
        "stamp-sequence-not-moved",
        "storage/record/_stamp.pyx",
        "        sequence[0] = (sequence[0] + load32(batch + RECORDS_COUNT)) & 0x7FFFFFFF\n",
        "        sequence[0] = (sequence[0] + 1) & 0x7FFFFFFF\n",
        "The second batch of a commit from Spark is out of order for a broker.",
        (STAMP,),
    ),
    Fault(
        "stamp-control-batch-accepted",
        "storage/record/_stamp.pyx",
        "(TRANSACTIONAL_BIT | CONTROL_BIT | HORIZON_BIT) != 0",
        "(TRANSACTIONAL_BIT | HORIZON_BIT) != 0",
        "A staged file can contain a marker that ends somebody's transaction.",
        (STAMP,),
    ),
    Fault(
        "columns-aborted-span-without-its-last-offset",
        "storage/record/columns/_columns.pyx",
        "offset <= span.last_offset\n",
        "offset < span.last_offset\n",
        "Spark reads a record of an aborted transaction.",
        (COLUMNS,),
    ),
    Fault(
        "predicate-pattern-is-not-tried-again",
        "storage/record/columns/_predicate.pyx",
        "        if star < 0 or again >= end:\n",
        "        if star < 0 or again <= end:\n",
        "`where value like '%a_c'` misses records.",
        ("tests/storage/condition/test_condition.py",),
    ),
    Fault(
        "rows-key-not-required",
        "storage/record/columns/_rows.pyx",
        "        if stop == NULL_KEY:\n            return InvalidRecord(\n",
        "        if stop == NULL_KEY:\n            return UnknownTopicOrPartition(\n",
        "Spark tells that a partition is missing, though a record has no key.",
        (ROWS,),
    ),
    Fault(
        "rows-null-headers-not-null",
        "storage/record/columns/_rows.pyx",
        "    if not input.has_headers or is_null(&input.headers, at):\n",
        "    if not input.has_headers:\n",
        "A row without headers gets those of another row.",
        (ROWS,),
    ),
    # -- waiting -------------------------------------------------------------------------------
    Fault(
        "waiting-stays-forbidden-after-a-failure",
        "storage/waiting.pyx",
        "    try:\n        return function(*arguments)\n    finally:\n"
        "        must_not_wait = before\n",
        "    result = function(*arguments)\n    must_not_wait = before\n    return result\n",
        "After the first read that must wait, no read of the daemon may wait.",
        ("tests/storage/test_waiting.py",),
    ),
]
