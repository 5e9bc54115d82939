"""Somebody is shown what is not so: too much, too little, twice, or of another history."""

from __future__ import annotations

from tests.faults.fault import Fault

APPEND_HANDLE = "tests/kafkafs/tree/append/test_append_handle.py"
VIEW_FILE = "tests/kafkafs/tree/files/test_view_file.py"
TREE_TRANSACTIONS = "tests/kafkafs/tree/partition/test_transactions.py"
FOLLOW_FILE = "tests/kafkafs/tree/files/test_follow_file.py"
FOLLOW_HISTORY = "tests/kafkafs/tree/files/test_follow_history.py"
TREE_FOLLOWING = "tests/kafkafs/tree/test_following.py"
REWRITE = "tests/kafkafs/tree/partition/test_rewrite.py"
GENERATIONS = "tests/kafkafs/tree/partition/test_generations.py"
TRANSACTIONS = "tests/storage/log/test_transactions.py"
PRODUCERS = "tests/storage/state/test_producer_state.py"
HISTORY = "tests/storage/state/test_history.py"
FOLLOW = "tests/storage/follow/test_follow.py"
FIRST_READ = "tests/storage/segment/test_first_read.py"
RECOVERY = "tests/storage/recovery/test_recovery.py"
REPLAY = "tests/storage/recovery/test_replay.py"
APPEND = "tests/storage/log/test_append.py"
LOG = "tests/storage/log/test_log.py"
OPERATIONS = "tests/kafkafs/fuse/test_operations.py"
CACHING = "tests/mount/contract/test_caching.py"

FAULTS = [
    # -- transactions --------------------------------------------------------------------------
    Fault(
        "last-stable-offset-one-too-far",
        "storage/log/log.py",
        "        return self.log_end_offset if first is None else max(first,",
        "        return self.log_end_offset if first is None else max(first + 1,",
        "The first record of an open transaction is stable.",
        (TRANSACTIONS,),
    ),
    Fault(
        "last-stable-offset-below-the-log-start",
        "storage/log/log.py",
        "first is None else max(first, self.log_start_offset)",
        "first is None else first",
        "An offset that is no longer there is the last stable one.",
        (TRANSACTIONS, LOG),
    ),
    Fault(
        "aborted-of-what-has-left-the-log-forgotten",
        "storage/log/transactions.py",
        "        entries = {entry for segment in (*left, *segments) for entry in"
        " segment.files.aborted}",
        "        entries = {entry for segment in segments for entry in segment.files.aborted}\n"
        "        del left",
        "A reader of a deleted segment is shown records of aborted transactions.",
        (TRANSACTIONS, TREE_TRANSACTIONS, LOG),
    ),
    Fault(
        "aborted-last-record-is-committed",
        "storage/log/transactions.py",
        "        return number >= 0 and offset <= spans[number][1]",
        "        return number >= 0 and offset + 1 < spans[number][1]",
        "The last record of an aborted transaction is shown.",
        (TRANSACTIONS,),
    ),
    Fault(
        "aborted-loaded-before-one-was-added-counts",
        "storage/log/transactions.py",
        "            if version == self._aborted_version:\n",
        "            if version >= 0:\n",
        "A transaction that is aborted while another thread reads the indexes is shown.",
        (TRANSACTIONS,),
        unseen="The window is some instructions of a thread, and nothing is called in it.",
    ),
    Fault(
        "stable-size-of-later-segments",
        "storage/log/transactions.py",
        "                segment.stable_size = 0\n",
        "                segment.stable_size = max(segment.size, 0)\n",
        "Segments behind an open transaction are shown.",
        (TRANSACTIONS, TREE_TRANSACTIONS),
    ),
    Fault(
        "append-behind-an-open-transaction-is-stable",
        "storage/log/log.py",
        "        if undecided is None and (update is None or"
        " self.producers.first_undecided_offset is None):",
        "        if update is None or self.producers.first_undecided_offset is None:",
        "What is appended behind an open transaction is shown before it.",
        (TRANSACTIONS, TREE_TRANSACTIONS),
    ),
    Fault(
        "stabilized-not-told",
        "storage/log/log.py",
        "        if stabilized:\n",
        "        if stabilized and update is None:\n",
        "What a COMMIT makes visible is seen only with the next append.",
        (TREE_TRANSACTIONS, TRANSACTIONS),
    ),
    Fault(
        "log-start-within-a-transaction-not-told",
        "storage/log/log.py",
        "            self.transactions.stabilize()\n"
        "            for listener in self.listeners:\n"
        "                listener.stabilized(self)\n"
        "        for listener",
        "            self.transactions.stabilize()\n        for listener",
        "delete-records into an open transaction: st_size is below 0.",
        (TREE_TRANSACTIONS, "tests/kafkafs/tree/test_following.py"),
    ),
    Fault(
        "first-undecided-is-the-last-one",
        "storage/state/producer_state.py",
        "        self.first_undecided_offset = min(self._open.values(), default=None)",
        "        self.first_undecided_offset = max(self._open.values(), default=None)",
        "Records of the older of two open transactions are shown.",
        (PRODUCERS,),
    ),
    Fault(
        "producers-with-an-open-transaction-expire",
        "storage/state/producer_state.py",
        "            if not producer.in_transaction and now_ms - producer.timestamp >="
        " expiration_ms:",
        "            if now_ms - producer.timestamp >= expiration_ms:",
        "A transaction that is open for days is shown.",
        (PRODUCERS,),
    ),
    # -- producers -----------------------------------------------------------------------------
    Fault(
        "producer-duplicates-of-another-epoch",
        "storage/state/producer_state.py",
        "        if batch.producer_epoch == self.epoch and batch.base_sequence >= 0:",
        "        if batch.base_sequence >= 0:",
        "A new producer's first batch is taken for the old one's, and dropped.",
        (PRODUCERS, APPEND),
    ),
    Fault(
        "producer-epochs-that-are-over",
        "storage/state/producer_state.py",
        "        if batch.producer_epoch < self.epoch:",
        "        if batch.producer_epoch < self.epoch - 1:",
        "A producer that was fenced off goes on writing.",
        (PRODUCERS, APPEND),
    ),
    Fault(
        "producer-new-epoch-begins-anywhere",
        "storage/state/producer_state.py",
        "            expected = 0\n",
        "            expected = batch.base_sequence\n",
        "The first batches of a new epoch can be missing.",
        (PRODUCERS, APPEND),
    ),
    Fault(
        "producer-gap-of-one",
        "storage/state/producer_state.py",
        "            expected = sequence_after(self.last_sequence, 1)",
        "            expected = max(sequence_after(self.last_sequence, 1), batch.base_sequence)",
        "A batch is missing in the log, and the next one is taken.",
        (PRODUCERS, APPEND),
    ),
    Fault(
        "producer-four-batches-remembered",
        "storage/state/producer_state.py",
        "BATCHES_KEPT = 5",
        "BATCHES_KEPT = 4",
        "A client that sends its oldest batch under way again is refused, or heard twice.",
        (PRODUCERS,),
    ),
    Fault(
        "producer-batch-without-its-transaction",
        "storage/state/producer_state.py",
        "        if self.in_transaction and not batch.attributes & TRANSACTIONAL_BIT:",
        "        if self.in_transaction and batch.attributes < 0:",
        "A record that belongs to no transaction goes with one that is aborted.",
        (TRANSACTIONS,),
    ),
    Fault(
        "producer-marker-of-an-old-coordinator",
        "storage/state/producer_state.py",
        "            if batch.coordinator_epoch < self.coordinator_epoch:",
        "            if batch.coordinator_epoch < -1:",
        "A coordinator that was replaced ends transactions.",
        (PRODUCERS, APPEND, TRANSACTIONS),
    ),
    Fault(
        "producer-snapshot-without-checksum",
        "storage/state/producer_state.py",
        "    if crc32c(data[_COUNT_AT:]) != crc:",
        "    if crc < 0:",
        "Sequences are read from a torn snapshot.",
        (PRODUCERS,),
    ),
    Fault(
        "producer-trusted-by-another-handle",
        "storage/log/append.py",
        "            follows = trusted is not None and"
        " trusted.get(batch.producer_id) == producer.last_offset",
        "            follows = trusted is not None",
        "A gap in a producer's sequences is taken.",
        (APPEND, "tests/kafkafs/tree/append/test_batches_handle.py"),
    ),
    # -- reading what is damaged ---------------------------------------------------------------
    Fault(
        "first-read-not-checked-after-a-start",
        "storage/segment/segment.py",
        "        self.files.synced_size = size\n        self.first_read.doubt(size)\n",
        "        self.files.synced_size = size\n",
        "A flipped bit is shown.",
        (FIRST_READ,),
    ),
    Fault(
        "first-read-not-checked-after-a-roll",
        "storage/segment/segment.py",
        "        self.files.sealed = True\n"
        "        # Most reads will come from the disk, not from the page cache.\n"
        "        self.first_read.doubt(self.size)\n",
        "        self.files.sealed = True\n",
        "A bit that flips on the disk is shown as long as the daemon lives.",
        (FIRST_READ,),
    ),
    Fault(
        "first-read-what-came-back-from-the-disk-is-trusted",
        "storage/segment/segment.py",
        "                self.first_read.doubt(self.size)\n            raise BlockingIOError",
        "                pass\n            raise BlockingIOError",
        "What was written here and dropped from the cache is not checked.",
        (FIRST_READ,),
    ),
    Fault(
        "first-read-damage-is-read-over",
        "storage/segment/segment.py",
        "count = sound_size(self.damages, position, count, self.log_path)",
        "count = min(count, len(buffer))",
        "Damaged bytes are read the first time.",
        (FIRST_READ,),
    ),
    Fault(
        "first-read-one-byte-more-is-known",
        "storage/segment/segment.py",
        "            count = known\n",
        "            count = known + 1\n",
        "The byte behind what was checked counts as checked.",
        (FIRST_READ,),
    ),
    Fault(
        "damage-places-do-not-join",
        "storage/segment/damage.py",
        "                end=max(last.end, place.end),\n",
        "                end=place.end,\n",
        "Of two damaged places, one in the other, the rest of the larger is read.",
        (
            FIRST_READ,
            "tests/storage/segment/test_damage.py",
            "tests/storage/verify/test_log_checker.py",
        ),
    ),
    Fault(
        "damage-not-news-though-it-is",
        "storage/log/log.py",
        "            self.counters.damages += news\n",
        "            self.counters.damages += 0\n",
        "The metric of damages stays 0.",
        ("tests/storage/verify/test_log_checker.py", LOG),
    ),
    Fault(
        "damage-in-the-active-segment-is-appended-behind",
        "storage/log/log.py",
        "        if segment.damages and segment is self.active and is_written:\n"
        "            self.roll(now_ms)\n",
        "        del is_written\n",
        "A start after a kill cuts all that was appended behind a damaged batch.",
        ("tests/storage/verify/test_log_checker.py", "tests/storage/segment/test_damage.py"),
    ),
    # -- bounds --------------------------------------------------------------------------------
    Fault(
        "time-index-without-its-final-entry",
        "storage/segment/segment.py",
        "            self.files.time_index.maybe_append(self.max_timestamp,"
        " self.max_timestamp_offset)\n"
        "            self.files.offset_index.trim()",
        "            self.files.offset_index.trim()",
        "A look-up by time begins a batch too late, and retention goes by another time.",
        (LOG, RECOVERY),
    ),
    Fault(
        "max-timestamp-of-the-last-batch",
        "storage/segment/segment.py",
        "                if max_timestamp > self.max_timestamp:\n",
        "                if max_timestamp >= 0:\n",
        "Retention deletes by the time of the last batch, not by the latest one.",
        (LOG, APPEND),
    ),
    Fault(
        "max-timestamp-of-an-unindexed-append",
        "storage/segment/segment.py",
        "            and first[3] <= self.max_timestamp\n",
        "            and first[3] <= self.max_timestamp + 1\n",
        "The largest timestamp is one too small, and so the time index.",
        (LOG, APPEND),
    ),
    Fault(
        "index-entry-one-batch-too-early",
        "storage/segment/segment.py",
        "                if self._bytes_since_index_entry > interval:",
        "                if self._bytes_since_index_entry >= interval:",
        "An index is another than the one that recovery builds.",
        (LOG, RECOVERY),
    ),
    Fault(
        "index-entries-of-a-refused-append-stay",
        "storage/segment/segment.py",
        "            for index in (self.files.offset_index, self.files.time_index):\n",
        "            for index in (self.files.time_index,):\n",
        "An index entry names a place where no batch begins.",
        (LOG, APPEND),
    ),
    Fault(
        "largest-offset-one-too-far",
        "storage/log/append.py",
        "    if not first <= last_offset < paths.MAX_OFFSET:",
        "    if not first <= last_offset <= paths.MAX_OFFSET:",
        "A log ends at 2**63, and its partition does not open any more.",
        ("tests/storage/recovery/test_bad_files.py",),
    ),
    Fault(
        "segment-of-too-many-offsets",
        "storage/log/log.py",
        "        is_far = last_offset - active.base_offset > MAX_OFFSET_SPAN",
        "        is_far = last_offset - active.base_offset > MAX_OFFSET_SPAN + 1",
        "A relative offset in an index is negative.",
        (APPEND, LOG),
    ),
    Fault(
        "log-start-of-half-deleted-segments",
        "storage/recovery/recovery.py",
        "    count = sum(base <= context.log_start for base in following)\n",
        "    count = sum(base < context.log_start for base in following)\n",
        "After a kill a segment without a visible record stays.",
        ("tests/crash/test_deletion_durable.py",),
    ),
    Fault(
        "log-start-positions-hang-on-what-is-removed",
        "storage/recovery/recovery.py",
        "        count = sum(base <= kept_from for base in following[:count])\n",
        "        del kept_from\n",
        "The positions of .follow begin anew after a kill.",
        (HISTORY, RECOVERY, "tests/crash/test_follow_crash.py"),
    ),
    Fault(
        "sealed-segment-that-may-lack-its-end-is-trusted",
        "storage/recovery/loading.py",
        " or not indexes_fit or self._may_lack_end():",
        " or not indexes_fit:",
        "A time index without its last entry is taken: a look-up begins a batch too late.",
        (RECOVERY,),
    ),
    Fault(
        "recovered-log-ends-before-its-start",
        "storage/recovery/recovery.py",
        "    if segments and segments[-1].next_offset < context.log_start:",
        "    if segments and segments[-1].next_offset < 0:",
        "Offsets are given out again that were deleted.",
        (RECOVERY,),
    ),
    Fault(
        "replay-aborts-before-a-scan-are-dropped",
        "storage/recovery/replay.py",
        "    entries = tuple(entry for entry in index.entries if base <= entry.last_offset"
        " < offset)",
        "    entries: tuple[TxnEntry, ...] = ()\n    _ = base, offset",
        "After a kill aborted records of the part that was flushed are shown.",
        (TRANSACTIONS,),
    ),
    Fault(
        "replay-snapshot-beyond-the-log-end",
        "storage/recovery/replay.py",
        "            if offset is not None and log_start <= offset <= log_end:",
        "            if offset is not None and log_start <= offset:",
        "Sequences are known of records that are gone: a retry is a duplicate, and lost.",
        (REPLAY,),
    ),
    # -- what the kernel keeps -----------------------------------------------------------------
    Fault(
        "attributes-of-a-waiting-answer-are-kept",
        "kafkafs/fuse/operations.py",
        "            return waited._replace(attr_timeout=0.0)",
        "            return waited",
        "stat shows an old size for an hour.",
        (OPERATIONS,),
    ),
    Fault(
        "attributes-of-setattr-and-create-are-kept",
        "kafkafs/fuse/operations.py",
        "    entry.attr_timeout = 0.0\n    return entry",
        "    _ = entry.attr_timeout\n    return entry",
        "A size that an append has changed meanwhile is kept for an hour.",
        (CACHING,),
        unseen="It takes a notice that overtakes an answer on its way into the kernel.",
    ),
    Fault(
        "first-attributes-are-kept-for-an-hour",
        "kafkafs/fuse/answers.py",
        "        entry.attr_timeout = min(attributes.attr_timeout, FIRST_KEEP_S)",
        "        entry.attr_timeout = attributes.attr_timeout",
        "A notice that overtakes a lookup finds nothing to drop, and the size stays old.",
        (OPERATIONS,),
    ),
    Fault(
        "attributes-dropped-after-the-views-learn",
        "kafkafs/tree/partition/partition.py",
        "        self.drop_sizes()\n        for view in self.views.values():\n"
        "            view.layout.appended(position, data)\n",
        "        for view in self.views.values():\n"
        "            view.layout.appended(position, data)\n"
        "        self.drop_sizes()\n",
        "stat shows fewer bytes than were read.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "attributes-kept-beside-appends",
        "kafkafs/tree/partition/partition.py",
        "        if self._growing and (inode != self._kept or self.writing is not None):\n"
        "            return 0.0\n        return self.mount.attr_timeout",
        "            pass\n        return self.mount.attr_timeout",
        "The size goes backwards.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "attributes-kept-beside-an-unfinished-line",
        "kafkafs/tree/partition/partition.py",
        "        if self._unfinished:\n            return 0.0\n        if self._growing",
        "        if self._growing",
        "printf x >> p; stat p: the line that close(2) made a record is not there.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "attributes-not-dropped-when-a-line-begins",
        "kafkafs/tree/partition/partition.py",
        "        if self._unfinished == 1:\n            self._drop_attributes()\n",
        "        _ = self._drop_attributes\n",
        "The kernel's old size stays when an unfinished line becomes a record.",
        ("tests/kafkafs/tree/append/test_topic_append.py",),
    ),
    Fault(
        "attributes-of-the-written-file-told-to-others",
        "kafkafs/tree/partition/partition.py",
        "                self.mount.notices.attributes_changed(self._kept)\n",
        "                pass\n",
        "The size goes backwards between two who ask while a write is answered.",
        (APPEND_HANDLE,),
    ),
    Fault(
        "mtime-stands-still",
        "kafkafs/tree/partition/partition.py",
        "segment.date(shown if is_same else shown + 1)",
        "segment.date(shown)",
        "make and rsync see no append within one tick of the clock.",
        (APPEND_HANDLE, VIEW_FILE),
    ),
    Fault(
        "names-stay-after-the-past-has-changed",
        "kafkafs/tree/partition/partition.py",
        "            self.log.history.now = past\n",
        "            self.log.history.now = past._replace(nonce=self.log.history.nonce)\n",
        "Readers who come after retention get the old inode.",
        (REWRITE, VIEW_FILE),
    ),
    Fault(
        "kernel-not-told-of-names",
        "kafkafs/tree/partition/partition.py",
        "        if old:\n            self.mount.notices.names_changed()",
        "        _ = self.known",
        "tail -F never hears that the head was dropped.",
        (VIEW_FILE, REWRITE, CACHING),
    ),
    Fault(
        "owner-changed-not-told",
        "kafkafs/tree/partition/partition.py",
        "        self._owner = None\n        self._drop_attributes()\n",
        "        self._owner = None\n",
        "chmod 600 leaves a file readable for an hour.",
        (
            "tests/kafkafs/tree/directories/test_directories.py",
            "tests/mount/contract/test_directories.py",
        ),
    ),
    Fault(
        "owner-of-a-topic-not-told-to-its-directories",
        "kafkafs/tree/directories/topic.py",
        "            self.mount.permissions.change_topic(self.topic.name, change)\n"
        "            self._changed()\n",
        "            self.mount.permissions.change_topic(self.topic.name, change)\n",
        "chmod 700 of a topic leaves its views to be listed for an hour.",
        (
            "tests/kafkafs/tree/directories/test_directories.py",
            "tests/mount/test_two_users.py",
        ),
    ),
    Fault(
        "kernel-without-epochs-keeps-names",
        "kafkafs/fuse/daemon.py",
        "            self._tree.mount.name_timeout = 0.0\n",
        "            pass\n",
        "On an older kernel names lead to histories that are gone.",
        (CACHING, "tests/kafkafs/fuse/test_rewritten_names.py"),
    ),
    Fault(
        "new-follower-keeps-attributes",
        "kafkafs/tree/context.py",
        "        self.attr_timeout = self.name_timeout = 0.0\n",
        "        pass\n",
        "A broker starts on what is mounted read-only, and its appends are not seen.",
        ("tests/kafkafs/tree/test_following.py", "tests/mount/test_following.py"),
    ),
    # -- histories -----------------------------------------------------------------------------
    Fault(
        "history-base-always-durable",
        "storage/state/history.py",
        "        return any(saved.get(view, ())[:1] == base for saved in self._saved_bases)",
        "        return view in self.now.bases or True",
        ".follow gives out positions that a kill has count anew.",
        (HISTORY,),
    ),
    Fault(
        "history-same-nonce-after-a-cut",
        "storage/state/history.py",
        '        lost = cut or (not clean and recorded.facts.get("boot") != [boot])',
        '        lost = not clean and recorded.facts.get("boot") != [boot]',
        "An inode shows other bytes after recovery has cut some.",
        (HISTORY,),
    ),
    Fault(
        "history-same-nonce-after-a-power-cut",
        "storage/state/history.py",
        '        lost = cut or (not clean and recorded.facts.get("boot") != [boot])',
        "        lost = cut",
        "An inode shows other bytes after a power cut.",
        (HISTORY,),
    ),
    Fault(
        "history-last-batch-not-compared",
        "storage/state/history_file.py",
        "        return batch is not None and batch[1].crc == int(batch_crc, 16)",
        "        return batch is not None",
        "An inode shows what another program has written in its place.",
        (HISTORY,),
    ),
    Fault(
        "history-sizes-not-compared",
        "storage/state/history_file.py",
        '    text = "".join(f"{segment.base_offset} {segment.size}\\n" for segment in segments)',
        '    text = "".join(f"{segment.base_offset}\\n" for segment in segments)',
        "A segment that another program has rewritten counts as the same.",
        (HISTORY,),
    ),
    Fault(
        "history-saved-over-a-later-one",
        "storage/state/history.py",
        "            if self.version != version or self.now is not before:\n",
        "            if version < 0:\n",
        "A change of the past that was given up is written over one that was carried out.",
        (HISTORY, REWRITE),
    ),
    Fault(
        "follow-file-gives-out-what-is-not-durable",
        "kafkafs/tree/files/follow_file.py",
        "            if not log.history.is_durable(self.view.layout.view.name):\n",
        "            if False:\n",
        "A shipper comes back after a kill with a position that means something else.",
        (FOLLOW_FILE, FOLLOW_HISTORY, "tests/crash/test_follow_crash.py"),
    ),
    Fault(
        "follow-file-of-other-positions",
        "kafkafs/tree/files/follow_file.py",
        '            raise OSError(errno.ESTALE, "positions have begun anew, in another inode")',
        "            _ = errno.ESTALE",
        "A shipper goes on at a position that means something else.",
        (FOLLOW_FILE, FOLLOW_HISTORY),
    ),
    Fault(
        "generation-reads-on-in-the-new-history",
        "kafkafs/tree/partition/generations.py",
        "            self._own_end = end\n",
        "            _ = self._own_end\n",
        "An open file shows cleaned bytes at old positions, instead of ESTALE.",
        (GENERATIONS,),
    ),
    Fault(
        "generation-past-is-there-for-ever",
        "kafkafs/tree/partition/generations.py",
        "                self.first_valid = max(self.first_valid, ends)\n",
        "                _ = ends\n",
        "A deleted segment's bytes are looked for, and a traceback found.",
        (GENERATIONS,),
    ),
    Fault(
        "view-file-of-another-nonce",
        "kafkafs/tree/files/view_file.py",
        "        if generation.nonce != self._nonce or (self.lookups",
        "        if (self.lookups",
        "An inode shows another history than when it was looked up.",
        (VIEW_FILE, REWRITE),
    ),
    Fault(
        "raw-file-that-was-replaced",
        "kafkafs/tree/files/raw_file.py",
        "return found if files.identity(path) == self._identity else None",
        "return found if files.identity(path) else None",
        "An inode of .raw shows another file than before.",
        ("tests/kafkafs/tree/files/test_raw_file.py",),
    ),
    Fault(
        "raw-file-keeps-pages-from-before-its-sealing",
        "kafkafs/tree/files/raw_file.py",
        "keep_cache=segment is was_cached)",
        "keep_cache=True)",
        "A sealed segment's log shows zeros that were cached behind its end while it grew.",
        ("tests/kafkafs/tree/files/test_raw_file.py",),
    ),
    Fault(
        "raw-file-that-was-cut-is-read-through-the-page-cache",
        "kafkafs/tree/files/raw_file.py",
        "        if is_short or self._segment.size < self._segment_size:",
        "        if False:",
        "An open log that a broker has cut and lets grow shows zeros.",
        ("tests/mount/contract/test_sealed_files.py",),
    ),
    # -- a log that another process writes -----------------------------------------------------
    Fault(
        "what-is-opened-is-not-held",
        "kafkafs/tree/files/view_file.py",
        "            for extent in generation.extents()[: descriptors.budget() // HELD]:\n",
        "            for extent in generation.extents()[:0]:\n",
        "A cleaner that runs twice takes a file away between its open and its first read.",
        (TREE_FOLLOWING,),
    ),
    Fault(
        "what-is-gone-can-be-opened",
        "kafkafs/tree/files/view_file.py",
        "            if not generation.is_current:\n",
        "            if False:\n",
        "A name leads to a file that a cleaner has taken away since the lookup.",
        (TREE_FOLLOWING,),
    ),
    Fault(
        "follow-aborted-of-an-old-tail-stay",
        "storage/follow/follow.py",
        "            index.entries = tuple(entry for entry in index.entries if entry.last_offset"
        " < offset)",
        "            index.entries = tuple(entry for entry in index.entries if offset >= 0)",
        "Committed records are hidden behind a transaction that another process has cut off.",
        (FOLLOW,),
    ),
    Fault(
        "follow-a-log-in-its-place-is-the-same",
        "storage/follow/follow_tail.py",
        "    if identity is None or identity[:2] != (found.st_dev, found.st_ino):\n"
        "        return False\n",
        "    if identity is None:\n        return False\n",
        "A cleaned segment is taken for the one that was read: tail -f repeats records.",
        (FOLLOW,),
    ),
    Fault(
        "follow-inode-numbers-given-again",
        "storage/follow/follow_tail.py",
        "        return files.born_ns(segment.log_path) == identity[2]",
        "        return files.born_ns(segment.log_path) >= 0",
        "Another file of the same inode number is taken for the one that was read.",
        (FOLLOW,),
    ),
    Fault(
        "follow-cut-log-that-has-grown-again",
        "storage/follow/follow_tail.py",
        "        return now.st_size < active.size or"
        " not self._stands(active, self._marked[1][-1:])",
        "        return now.st_size < active.size",
        "What was written over a cut is read in the middle of a batch.",
        (FOLLOW,),
    ),
    Fault(
        "follow-transactions-behind-the-high-watermark",
        "storage/follow/follow_tail.py",
        "        log.producers = self.producers_of(segments)\n",
        "        _ = self.producers_of\n",
        "until=high-watermark shows records of aborted transactions.",
        ("tests/kafkafs/tree/test_following.py", "tests/mount/test_following.py"),
    ),
    Fault(
        "follow-batch-that-reaches-the-high-watermark",
        "storage/follow/follow_tail.py",
        "        if last >= limit or size <= LOG_OVERHEAD:",
        "        if last > limit or size <= LOG_OVERHEAD:",
        "A record at the high watermark is shown.",
        (FOLLOW, "tests/storage/follow/test_follow_directory.py"),
    ),
    Fault(
        "follow-aborted-not-observed",
        "storage/follow/follow_tail.py",
        "            for aborted in update.aborted:\n"
        "                segment.files.txn_index.observe(aborted)\n",
        "            _ = update.aborted\n",
        "Records that a broker has aborted are shown.",
        (FOLLOW,),
    ),
]
