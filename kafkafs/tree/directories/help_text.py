"""`.kafkafs/help`: explains a mount to a reader who has nothing else of kafkafs.

The lines below "Try it" and "Delete" are commands that can be run, one after the other.
"""

from __future__ import annotations

HELP = r"""
This is a log of kafkafs. Appended lines stay in their order and never change.
On the disk the log has the format of Apache Kafka. These words are Kafka's:

  topic       a directory at the top of the mount, for one kind of records
  partition   a file in it, named 0, 1, 2 ...; its records have one order
  record      a line of such a file; its number there is its offset: 0, 1 ...

Try it, at the top of the mount

  mkdir orders                           # a topic, with the partition 0
  echo '3 apples' >> orders/0            # a record, kept if echo succeeds
  printf '1 pear\n2 figs\n' >> orders/0  # two more: each line is one
  cat orders/0                           # all, oldest first; tail -f waits too
  touch orders/1                         # the next partition
  cat orders/*                           # the whole topic
  cat orders/0@1                         # from offset 1 on
  cat orders/0@0..2                      # offsets 0 and 1
  cat orders/0@-2                        # the last two
  cat orders/0@-15m                      # of the last 15 minutes (s, m, h, d)
  cat orders/0@08:00..09:00              # of 8 to 9 today; 2026-11-21T08:00
  sort orders/.snapshot/*                # as it is now: fast for large reads
  cp -r orders/.snapshot "$(mktemp -d)"  # a copy of that
  printf 'al\t5 nuts\n' >> orders/.kv/append   # KEY TAB VALUE: by key
  cat orders/.kv/*                       # keys and values
  cat orders/.jsonl/*                    # offset, time, key, value, headers
  echo retention.ms=7d >> orders/.config # a setting: keep one week of records
  cat orders/.meta/0/offsets             # where the partition begins and ends
  mkdir .groups/g; echo 2 > .groups/g/orders/0   # g has read offsets 0 and 1
  cat orders/0@group=g .groups/g/.lag    # its unread records, and their number

Delete

  echo 0 2 > orders/.control/delete-records  # partition 0: all before 2
  rmdir orders                               # the topic, with all its records
  echo undelete orders >> .kafkafs/topics    # restore it, within a minute

Names in a topic that ls does not show

  N@START N@START..END   as above; also @start, @end; they can only be read
  .kv/N       KEY TAB VALUE; >> appends. \N is null; \t, \n, \\ stand for bytes
  .jsonl/N    a JSON object for each record; >> appends such
  .append     >> appends to any partition; .kv/append and .jsonl/append by key
  .snapshot/N the partition as it is now, fixed; .jsonl/.snapshot/N and others
  .follow/N   for tail -F: no byte moves; .ship/N: after a line for log shippers
  .batches/N  records as they lie on the disk, in batches; >> appends such
  .raw/N/     the files on the disk
  .meta/N/    facts: offsets segments index timeindex txnindex producers
  .config     settings, name=value; >> changes one; name= is the default again
  .control/   > starts a job, and reading shows its outcome:
    retention compaction   run, or dry-run: show what would be deleted
    roll flush verify      run (of partition N alone: run N)
    delete-records         PARTITION OFFSET
    abort-transaction      PARTITION PRODUCER_ID: abort an open transaction
  .groups/GROUP/TOPIC/N    at the top: committed offsets (.all, .lag, .claims);
              > takes N, earliest, latest, +N, -N or a time; rm, rmdir delete

In .kafkafs, for the user who mounted and the data directory's group

  log         events; the reasons of failed requests, and what to do
  topics      all topics with sizes, and deleted ones; takes lines:
              echo create NAME partitions=3 retention.ms=7d >> .kafkafs/topics
  config      mount options, settings for all topics; metrics: figures
  adopt       requests of Spark jobs; help, version: for all users

If a request fails, the end of .kafkafs/log has the reason, and what to do

  Operation not permitted   partitions take >> only: no >, rm, mv, no editor
  Permission denied         owner and mode, as of any file: ls -l
  Invalid argument          a line that this file refuses, or a bad name
  Message too long          a line of more than max.message.bytes, 1 MiB
  Read-only file system     the mount is read-only, or a name like N@START
  Input/output error        damage on the disk; the rest can be read
  Stale file handle         the next bytes are deleted: open it again
  Resource temporarily unavailable    the file is being measured: try again
  Numerical result out of range       .meta/N/offsets: log start and log end
  Cannot allocate memory              a long line without newline: end it
  Transport endpoint is not connected  its daemon has ended: mount it again

More: man 5 kafkafs, man kafkafs, kafkafs --help
""".removeprefix("\n")
