"""`.kafkafs/help`: what somebody reads who has a mount, and nothing else of kafkafs.

The lines below "Try it" and "Delete" are commands that can be run, one after the other.
"""

from __future__ import annotations

HELP = r"""
This is a log, kept in files by kafkafs: what programs append stays, in order,
as it is. On the disk it has the format of Apache Kafka, whose words these are:

  topic       a directory at the top of the mount: one for each kind of record
  partition   a file in it, called 0, 1, 2 ...: an order of records of its own
  record      a line of such a file; its number there is its offset: 0, 1 ...

Try it, at the top of the mount

  mkdir orders                           # a topic, with the partition 0
  echo '3 apples' >> orders/0            # a record; it is kept if echo succeeds
  printf '1 pear\n2 figs\n' >> orders/0  # two more: each line is one
  cat orders/0                           # all, oldest first; tail -f waits too
  touch orders/1                         # the next partition
  cat orders/*                           # the whole topic
  cat orders/0@1                         # from offset 1 on
  cat orders/0@0..2                      # offsets 0 and 1
  cat orders/0@-2                        # the last two
  cat orders/0@-15m                      # of the last 15 minutes (s, m, h, d)
  cat orders/0@08:00..09:00              # of 8 to 9 today; 2026-11-21T08:00
  sort orders/.snapshot/*                # as it is now: for who reads a lot
  cp -r orders/.snapshot "$(mktemp -d)"  # a copy of that
  printf 'al\t5 nuts\n' >> orders/.kv/append   # KEY TAB VALUE: by key
  cat orders/.kv/*                       # keys and values
  cat orders/.jsonl/*                    # offset, time, key, value, headers
  echo retention.ms=7d >> orders/.config # a setting: keep a week, and not all
  cat orders/.meta/0/offsets             # where the partition begins and ends
  mkdir .groups/g; echo 2 > .groups/g/orders/0   # g has read offsets 0 and 1
  cat orders/0@group=g .groups/g/.lag    # what it has not; how much that is

Delete

  echo 0 2 > orders/.control/delete-records  # in partition 0 what is before 2
  rmdir orders                               # the topic, with all its records
  echo undelete orders >> .kafkafs/topics    # takes that back, within a minute

Names in a topic that ls does not show

  N@START N@START..END   as above; also @start, @end; they can only be read
  .kv/N       KEY TAB VALUE; >> appends. \N is null; \t, \n, \\ stand for bytes
  .jsonl/N    a JSON object for each record; >> appends such
  .append     >> appends to any partition; .kv/append and .jsonl/append by key
  .snapshot/N the partition as it is now, for ever; .jsonl/.snapshot/N and so on
  .follow/N   for tail -F: no byte moves; .ship/N: after a line for log shippers
  .batches/N  records as they lie on the disk, in batches; >> appends such
  .raw/N/     the files on the disk
  .meta/N/    facts: offsets segments index timeindex txnindex producers
  .config     settings, name=value; >> changes one; name= is the default again
  .control/   > has something done, reading shows what came of it:
    retention compaction   run, or dry-run: what would go
    roll flush verify      run (of partition N alone: run N)
    delete-records         PARTITION OFFSET
    abort-transaction      PARTITION PRODUCER_ID: ends what nobody will end
  .groups/GROUP/TOPIC/N    at the top: a consumer group's position; > commits an
              offset, earliest, latest, +N, -N or a time; rm, rmdir take it back

In .kafkafs, for the user who has mounted and the data directory's group

  log         what has happened; why something was refused, and what to do
  topics      all topics, with sizes, and what can be undeleted; takes lines:
              echo create NAME partitions=3 retention.ms=7d >> .kafkafs/topics
  config      options of the mount, settings for all topics; metrics: figures
  adopt       requests of Spark jobs; help, version: for everybody

When something fails, the end of .kafkafs/log says why, and what to do

  Operation not permitted   partitions take >> only: no >, rm, mv, no editor
  Permission denied         owner and mode, as of any file: ls -l
  Invalid argument          a line that this file does not take, or a bad name
  Message too long          a line of more than max.message.bytes, 1 MiB
  Read-only file system     the mount is read-only, or it is a name as N@START
  Input/output error        damage on the disk; all around it can be read
  Stale file handle         what was being read is deleted: open it again
  Resource temporarily unavailable    it is still being measured: try again
  Numerical result out of range       .meta/N/offsets: where it begins and ends
  Cannot allocate memory              a line without an end: end it
  Transport endpoint is not connected  its daemon has ended: mount it again

More: man 5 kafkafs, man kafkafs, kafkafs --help
""".removeprefix("\n")
