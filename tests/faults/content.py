"""A reader, a command, Spark or retention finds, shows or chooses the wrong records."""

from __future__ import annotations

from tests.faults.fault import Fault

CONDITION = "tests/storage/condition/test_condition.py"
CONSUME = "tests/mount/consume"
RETENTION = "tests/storage/retention/test_retention.py"
CAT_WHERE = "tests/kafkafs/cli/records/test_cat_where.py"
NARROW = "tests/storage/split/test_narrow.py"
WHERE = "tests/spark/test_where.py"
SPARK_OFFSETS = "tests/spark/test_offsets.py"
SPLIT = "tests/storage/split/test_split.py"
TOMBSTONES = "tests/storage/groups/test_tombstones.py"
VERIFY_INDEX = "tests/storage/verify/test_verify_index.py"

FAULTS = [
    # -- retention -----------------------------------------------------------------------------
    Fault(
        "retention-deletes-above-the-high-watermark",
        "storage/retention/retention.py",
        "        if segment.next_offset > facts.high_watermark or is_last_and_empty:\n",
        "        if is_last_and_empty:\n",
        "Records are deleted that a broker has not replicated.",
        (RETENTION,),
    ),
    Fault(
        "retention-size-deletes-one-segment-more",
        "storage/retention/retention.py",
        "        left -= segment.size\n        if left < limit:\n            break\n",
        "        if left < limit:\n            break\n        left -= segment.size\n",
        "The log keeps less than retention.bytes.",
        (RETENTION,),
    ),
    Fault(
        "retention-unknown-settings-delete",
        "storage/retention/retention.py",
        '    if config.unknown or "delete" not in config.cleanup_policy:\n'
        "        return Decision(doomed)\n",
        '    if "delete" not in config.cleanup_policy:\n        return Decision(doomed)\n',
        "Records of a topic are deleted whose settings only its broker knows.",
        (RETENTION,),
    ),
    Fault(
        "retention-goes-on-behind-a-segment-that-stays",
        "storage/retention/retention.py",
        "        if reason is None:\n            break\n",
        "        if reason is None:\n            continue\n",
        "A segment in the middle is named, so the whole run of retention fails.",
        (RETENTION,),
    ),
    # -- groups --------------------------------------------------------------------------------
    Fault(
        "groups-tombstones-in-the-order-of-types",
        "storage/groups/tombstones.py",
        "key=lambda key: (_ORDER.index(kind_of(key)), key))",
        "key=lambda key: (kind_of(key), key))",
        "A broker cannot load the groups of a partition after one was deleted.",
        (TOMBSTONES,),
    ),
    Fault(
        "groups-deleted-groups-keep-their-owner",
        "storage/groups/owners.py",
        "        kept = {name: each for name, each in known.items() if name in there}\n",
        "        kept = dict(known)\n",
        "A new group belongs to the user of a deleted one with its name.",
        ("tests/storage/groups/test_owners.py",),
    ),
    Fault(
        "groups-share-group-deleted",
        "storage/groups/tombstones.py",
        '    if "share" in kinds:\n',
        '    if kinds == {"share", ""}:\n',
        "A share group is deleted though its state stays at the broker.",
        (TOMBSTONES,),
    ),
    # -- owner ---------------------------------------------------------------------------------
    Fault(
        "owner-offset-beyond-the-log-committed",
        "storage/owner/group_positions.py",
        "log.log_start_offset <= position <= log.log_end_offset:\n",
        "log.log_start_offset <= position:\n",
        "A query commits an offset that its group cannot read from.",
        ("tests/storage/owner/test_group_positions.py",),
    ),
    Fault(
        "owner-staged-file-of-a-running-job-removed",
        "storage/owner/staged_orphans.py",
        "    return log.closed or under_way(log.topic, log.partition, name)\n",
        "    return log.closed\n",
        "A commit from Spark fails, because its staged file was removed.",
        ("tests/storage/owner/test_staged_orphans.py",),
    ),
    Fault(
        "owner-new-staged-files-are-orphans",
        "storage/owner/staged_orphans.py",
        "            if status.st_mtime_ns < before_ns:\n",
        "            if status.st_mtime_ns > 0:\n",
        "A slow job of Spark loses what it has staged.",
        ("tests/storage/owner/test_staged_orphans.py",),
    ),
    # -- conditions and splits --------------------------------------------------------------------
    Fault(
        "condition-negated-order-of-less",
        "storage/condition/condition.py",
        'NEGATED: dict[Order, Order] = {"<": ">=",',
        'NEGATED: dict[Order, Order] = {"<": ">",',
        "`where not key < 'b'` leaves the key b out.",
        ("tests/storage/condition/test_parse.py",),
    ),
    Fault(
        "condition-ranges-that-touch-are-one-short",
        "storage/condition/intervals.py",
        "            joined[-1] = joined[-1][0], max(joined[-1][1], high)\n",
        "            joined[-1] = joined[-1][0], high\n",
        "A condition with a range inside of another range misses records.",
        (CONDITION, "tests/storage/condition/test_parse.py"),
    ),
    Fault(
        "condition-and-becomes-or-when-negated",
        "storage/condition/condition.py",
        '"""All of the parts are true; also without parts."""\n\n    parts: tuple[Part, ...]\n\n'
        "    def negated(self) -> Part:\n        return AnyOf(",
        '"""All of the parts are true; also without parts."""\n\n    parts: tuple[Part, ...]\n\n'
        "    def negated(self) -> Part:\n        return Every(",
        "`where not (a and b)` finds too few records.",
        (CONDITION, "tests/storage/condition/test_parse.py"),
    ),
    Fault(
        "split-range-without-its-last-offset",
        "storage/split/narrow.py",
        "        yield from ((low, high + 1) for low, high in wanted or ((end, end - 1),))\n",
        "        yield from ((low, high) for low, high in wanted or ((end, end - 1),))\n",
        "A condition on the offset misses the last record.",
        (WHERE, CAT_WHERE),
    ),
    Fault(
        "split-joins-the-widest-gaps",
        "storage/split/narrow.py",
        "key=lambda at: left[at - 1][1] - left[at][0])",
        "key=lambda at: left[at][0] - left[at - 1][1])",
        "A condition on many times reads most of the log.",
        (NARROW,),
    ),
    Fault(
        "split-word-cut-at-the-end",
        "storage/split/word_query.py",
        "query_of_bytes(token, starts=number == 0, ends=number == last)\n",
        "query_of_bytes(token, starts=number == 0, ends=True)\n",
        "`where value like '%abc%'` misses the records with a longer word.",
        (NARROW,),
    ),
    Fault(
        "split-words-of-no-match",
        "storage/split/word_query.py",
        "not isinstance(part, Among | Like | Contains) or part.is_not:\n",
        "not isinstance(part, Among | Like | Contains):\n",
        "`where not value = 'a'` misses records.",
        (NARROW,),
    ),
    # -- indexes -------------------------------------------------------------------------------
    Fault(
        "txn-index-transaction-that-ends-at-the-start",
        "storage/index/txn_index.py",
        "    first = bisect_left(aborted, start, key=lambda entry: entry.last_offset)\n",
        "    first = bisect_left(aborted, start + 1, key=lambda entry: entry.last_offset)\n",
        "A reader is not told that the transaction was aborted.",
        (SPLIT, "tests/storage/compaction/test_cleaner.py"),
    ),
    Fault(
        "txn-index-entries-that-fall-are-read",
        "storage/index/txn_index.py",
        "            if entry.last_offset <= last:\n                return\n",
        "            if entry.last_offset <= last:\n                pass\n",
        "Rubbish behind a transaction index hides committed records.",
        ("tests/storage/index/test_txn_index.py",),
    ),
    # -- verify --------------------------------------------------------------------------------
    Fault(
        "verify-index-entry-beyond-the-log",
        "storage/verify/verify_index.py",
        "            elif offset >= end:\n",
        "            elif offset > end:\n",
        "verify finds no fault in an index that names the next offset.",
        (VERIFY_INDEX,),
    ),
    Fault(
        "verify-last-time-not-compared",
        "storage/verify/verify_index.py",
        "    if largest is not None and largest > last[0]:\n",
        "    if largest is not None and largest < last[0]:\n",
        "verify finds no fault in a time index without its last entry.",
        (VERIFY_INDEX,),
    ),
    Fault(
        "verify-a-transaction-begins-at-its-last-batch",
        "storage/verify/transactions.py",
        "                seen.open.setdefault(producer_id, base)\n",
        "                seen.open[producer_id] = base\n",
        "verify accepts an index by which readers show some aborted records.",
        ("tests/storage/verify/test_transactions.py",),
    ),
    # -- formats before v2 ------------------------------------------------------------------------
    Fault(
        "kafka07-missing-file-not-noticed",
        "storage/kafka07/segment.py",
        "        if before.next_offset != after.base_offset:\n",
        "        if before.next_offset > after.base_offset:\n",
        "A missing file of Kafka 0.7 is not noticed, and its messages are skipped.",
        ("tests/storage/kafka07/test_segment.py",),
    ),
    Fault(
        "convert-of-one-topic-converts-all",
        "storage/convert/convert.py",
        "        wanted = sorted(known.intersection(self.topics) or known)\n",
        "        wanted = sorted(known)\n",
        "kafkafs convert DATA TOPIC rewrites all topics.",
        ("tests/storage/convert/test_convert.py",),
    ),
    Fault(
        "convert-dry-run-locks",
        "storage/convert/convert.py",
        "        if self.dry_run:\n            work()\n            return\n        lock =",
        "        lock =",
        "A dry run fails while a daemon has the directory open.",
        ("tests/storage/convert/test_convert.py",),
    ),
    # -- schemas and dump ----------------------------------------------------------------------
    Fault(
        "schemas-version-of-a-deleted-subject",
        "kafkafs/schemas/registry_topic.py",
        "[schema for schema in self._of_subject(subject) if not schema.deleted]\n",
        "self._of_subject(subject)\n",
        "cat --decode uses a schema that was deleted.",
        ("tests/kafkafs/schemas/test_registry_topic.py",),
    ),
    Fault(
        "schemas-reused-id-replaces-the-schema",
        "kafkafs/schemas/registry_topic.py",
        "            if all(known.schema == schema.schema for known in "
        "self._with_id(*id_in_context)):\n",
        "            if schema.id >= 0:\n",
        "Records are decoded by another schema than with the registry.",
        ("tests/kafkafs/schemas/test_registry_topic.py",),
    ),
    Fault(
        "dump-zeros-of-an-index-printed",
        "kafkafs/dump/offset_index.py",
        "            if offset == base and number > 0:\n                break\n",
        "            if offset < base and number > 0:\n                break\n",
        "dump prints thousands of entries of zeros, which a broker has preallocated.",
        ("tests/kafkafs/dump/test_indexes.py",),
    ),
    Fault(
        "dump-first-sequence-of-a-batch",
        "kafkafs/dump/producer_state.py",
        "sequence_after(last_sequence, -offset_delta),",
        "sequence_after(last_sequence, offset_delta),",
        "dump prints a wrong first sequence of each producer.",
        ("tests/kafkafs/dump/test_producer_state.py",),
    ),
    # -- kafka_client ----------------------------------------------------------------------------
    Fault(
        "client-port-of-an-address-in-brackets",
        "kafka_client/addresses.py",
        '    if not colon or host.count("[") > host.count("]") or text.endswith("]"):\n',
        "    if not colon:\n",
        "kafka://[::1] without a port is refused.",
        ("tests/kafka_client/test_addresses.py",),
    ),
    Fault(
        "client-password-in-an-address",
        "kafka_client/addresses.py",
        '    if "@" in brokers:\n',
        '    if brokers.startswith("@"):\n',
        "A password in an address is shown in the list of processes and in messages.",
        ("tests/kafka_client/test_addresses.py",),
    ),
    Fault(
        "client-bytes-behind-an-answer",
        "kafka_client/messages.py",
        "    if reader.remaining:\n",
        "    if reader.remaining < 0:\n",
        "An answer that is read by a wrong schema counts as right.",
        ("tests/kafka_client/test_messages.py",),
    ),
    Fault(
        "client-control-characters-of-a-broker",
        "kafka_client/errors.py",
        "        letter if letter.isprintable() else",
        "        letter if letter else",
        "A broker writes control characters to the terminal.",
        ("tests/kafka_client/test_cluster.py",),
    ),
    Fault(
        "client-complete-partition-fetched-for-ever",
        "kafka_client/consume.py",
        "        if error or each.diverging or is_complete:\n",
        "        if error or each.diverging:\n",
        "fetch of a range does not end.",
        ("tests/kafkafs/cli/common/test_clusters.py", "tests/interop/test_client.py"),
    ),
    # -- commands ------------------------------------------------------------------------------
    Fault(
        "cli-ls-lists-kafkas-own-topics",
        "kafkafs/cli/topics/ls.py",
        "            hidden = frozenset() if internal else INTERNAL_TOPICS\n",
        "            hidden = frozenset()\n",
        "ls lists topics that nobody has created.",
        ("tests/kafkafs/cli/topics/test_topics.py",),
    ),
    Fault(
        "cli-ls-both-limits-shown-as-one",
        "kafkafs/cli/topics/ls.py",
        '    return "+".join(kept) or "all", numbers\n',
        '    return next(iter(kept), "all"), numbers\n',
        "ls hides that retention also deletes by size.",
        ("tests/kafkafs/cli/topics/test_topics.py",),
    ),
    Fault(
        "cli-config-empty-value-is-set",
        "kafkafs/cli/topics/config.py",
        "    return name, value or None\n",
        "    return name, value\n",
        "config TOPIC NAME= does not restore the default.",
        ("tests/kafkafs/cli/topics/test_config.py",),
    ),
    Fault(
        "cli-reset-of-all-topics-moves-kafkas-own",
        "kafkafs/cli/records/groups/reset.py",
        "    given = [each for each in partitions_at(logs) if logs.places or each[0] not in "
        "INTERNAL_TOPICS]\n",
        "    given = [each for each in partitions_at(logs)]\n",
        "groups reset commits offsets of __consumer_offsets.",
        ("tests/kafkafs/cli/records/test_groups.py",),
    ),
    Fault(
        "cli-reset-takes-partitions-of-a-consumer",
        "kafkafs/cli/records/groups/reset.py",
        "        if (topic, number) in holders:\n",
        "        if (topic, number) in holders and not topic:\n",
        "groups reset moves the offset of a consumer that runs, which overwrites it.",
        (f"{CONSUME}/test_sharing.py",),
    ),
    Fault(
        "cli-prune-dry-run-says-deleted",
        "kafkafs/cli/maintenance/prune.py",
        '        done = "would delete" if dry_run else "deleted"\n',
        '        done = "deleted"\n',
        "prune --dry-run says that it has deleted records.",
        ("tests/kafkafs/cli/maintenance/test_prune.py",),
    ),
    Fault(
        "cli-prune-ends-with-success-though-it-failed",
        "kafkafs/cli/maintenance/prune.py",
        "        end(failed=self.out.has_failed)\n",
        "        end(failed=False)\n",
        "A script takes a failed prune for one that worked.",
        ("tests/kafkafs/cli/maintenance/test_prune.py",),
    ),
    Fault(
        "cli-consume-two-consumers-of-one-file",
        "kafkafs/cli/records/consume/positions.py",
        "            fcntl.flock(fd, fcntl.LOCK_EX)\n            os.fchmod(fd, mode)\n",
        "            os.fchmod(fd, mode)\n",
        "After the first commit a second consumer reads the same records.",
        (f"{CONSUME}/test_sharing.py",),
    ),
    Fault(
        "cli-consume-expired-position-is-latest",
        "kafkafs/cli/records/consume/positions.py",
        "'earliest' if is_gone else 'latest'",
        "'latest' if is_gone else 'earliest'",
        "A consumer that retention has overtaken skips all records that are left.",
        (f"{CONSUME}/test_printing.py",),
    ),
    # -- Spark ---------------------------------------------------------------------------------
    Fault(
        "spark-limit-below-one-offset",
        "kafkafs/spark/source/offsets.py",
        "start[name] + max(most * size // total, 1))",
        "start[name] + most * size // total)",
        "A small partition beside large ones is never read by a stream.",
        (SPARK_OFFSETS,),
    ),
    Fault(
        "spark-names-given-twice",
        "kafkafs/spark/source/offsets.py",
        "    if len(result) != len(pairs):\n",
        "    if len(result) > len(pairs):\n",
        "Of two offsets of one partition, Spark takes the second one.",
        (SPARK_OFFSETS,),
    ),
    Fault(
        "spark-column-that-no-record-has",
        "kafkafs/spark/sink/sink_columns.py",
        "        if name not in _TYPES and name not in _LEFT_OUT:\n",
        "        if name in _LEFT_OUT and not name:\n",
        "The sink drops a misspelt column without a word.",
        ("tests/spark/test_sink_columns.py",),
    ),
    Fault(
        "spark-null-header-keeps-its-name",
        "kafkafs/spark/sink/sink_columns.py",
        "    if headers.null_count:\n",
        "    if headers.null_count < 0:\n",
        "The sink writes a header of a null, with the name that was there before.",
        ("tests/spark/test_staging.py",),
    ),
    Fault(
        "spark-quantile-counts-one-bucket-less",
        "kafkafs/spark/jobs/range_stats.py",
        "            if rank <= 0:\n",
        "            if rank < 0:\n",
        "stats prints a size for half of the records that more records exceed.",
        ("tests/spark/test_jobs_plain.py",),
    ),
]
