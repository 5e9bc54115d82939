"""How commands name a cluster, and the options that connect to it.

kafka://HOST:PORT[,HOST:PORT]/TOPIC[:PARTITION][@START[..END]] ...
kafka://HOST:PORT[,HOST:PORT] TOPIC[:PARTITION][@START[..END]] ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kafkafs.cli.common.ending import did_you_mean, warn
from kafkafs.cli.common.words import FILE, options_as

if TYPE_CHECKING:
    from kafka_client.addresses import Address, HostPort
    from kafka_client.cluster import Cluster, TopicPartition

# Of `kafka_client.addresses`, which few commands import.
_SCHEME = "kafka://"
_TOPIC_AUTHORIZATION_FAILED = 29


class ClusterAddress(NamedTuple):
    """A cluster, and the logs that the command line names there; none: all."""

    brokers: tuple[HostPort, ...]
    places: tuple[Address, ...] = ()


def is_cluster(word: str) -> bool:
    """Return whether a word of the command line is the address of a cluster."""
    return word.startswith(_SCHEME)


def cluster_address(words: Sequence[str], *, ranges: bool = False) -> ClusterAddress:
    """Parse words that begin with the address of a cluster. Errors: BadParameter, UsageError."""
    from kafka_client.addresses import parse_address
    from storage.errors import InvalidConfig

    first, *others = words
    try:
        found = parse_address(first)
        if found.topic is None:
            logs = [parse_address(f"{first.rstrip('/')}/{word}") for word in others]
        else:
            if not all(map(is_cluster, others)):
                raise click.UsageError("give kafka://HOST:PORT TOPIC..., or only whole addresses")
            logs = [found, *map(parse_address, others)]
    except InvalidConfig as error:
        raise click.BadParameter(str(error)) from None
    if any(each.brokers != found.brokers for each in logs):
        raise click.UsageError("give addresses of one cluster")
    if not ranges and any(each.range is not None for each in logs):
        raise click.UsageError("this command takes no @START..END")
    return ClusterAddress(found.brokers, tuple(logs))


class Client(NamedTuple):
    """The options `-F` and `--insecure`."""

    file: str | None
    insecure: bool

    @contextmanager
    def connected(self, brokers: Sequence[HostPort]) -> Iterator[Cluster]:
        """Yield the cluster. Errors: ClientError, InvalidConfig, OSError."""
        from kafka_client.cluster import Cluster
        from kafka_client.properties import default_file, read_settings
        from storage.errors import InvalidConfig

        path = default_file() if self.file is None else Path(self.file)
        try:
            settings = read_settings(path, insecure=self.insecure)
        except InvalidConfig as error:
            error.path = error.path or str(path)
            raise
        for warning in settings.warnings:
            warn(f"{path}: {warning}")
        with Cluster(brokers, settings) as cluster:
            yield cluster

    def check_unused(self) -> None:
        """Raise UsageError if an option was given, since the command works on a directory."""
        if self != (None, False):
            option = "--insecure" if self.file is None else "-F"
            raise click.UsageError(f"{option} requires an address: kafka://HOST:PORT/TOPIC")


#: The options. The parameter of the command is `client`, a Client.
cluster_options = options_as(
    "client",
    Client,
    click.option(
        *("-F", "--command-config", "file"),
        metavar="FILE",
        type=FILE,
        help=(
            "For kafka://: a file with the properties of a Kafka client or of kcat. The default is "
            "~/.config/kcat.conf, if that file exists."
        ),
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help=(
            "For kafka://: if FILE has a password but no security.protocol, send the password "
            "without TLS."
        ),
    ),
)


def partitions_of(
    cluster: Cluster, address: ClusterAddress, report: Callable[[object], None]
) -> list[tuple[TopicPartition, str | None]]:
    """Return the partitions that the address names, in this order, with their ranges.

    A topic without permission is reported. Errors: ClientError, UnknownTopicOrPartition.
    """
    from kafka_client.cluster import UNKNOWN_TOPIC, TopicPartition
    from kafka_client.errors import BrokerError
    from storage.errors import UnknownTopicOrPartition

    names = None if not address.places else [str(each.topic) for each in address.places]
    topics = cluster.refresh(names).topics
    found: list[tuple[TopicPartition, str | None]] = []
    for each in address.places or [None]:
        for name in sorted(topics) if each is None else [str(each.topic)]:
            topic = topics.get(name)
            if topic is None or topic.error == UNKNOWN_TOPIC:
                like = did_you_mean(name, cluster.refresh().topics)
                raise UnknownTopicOrPartition(f"there is no topic {name!r} in the cluster{like}")
            if topic.error:
                report(BrokerError(topic.error, name))
                continue
            wanted = None if each is None else each.partition
            if wanted is not None and wanted not in topic.partitions:
                raise UnknownTopicOrPartition(f"topic {name!r} has no partition {wanted}")
            found += [
                (TopicPartition(name, number), None if each is None else each.range)
                for number in sorted(topic.partitions)
                if wanted in (None, number)
            ]
    return found


def offsets_of(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    which: int,
    report: Callable[[object], None],
    *,
    committed: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offsets that `list_offsets` finds. Report the others.

    Errors: BrokerUnreachable; ClientError.
    """
    from kafka_client.errors import BrokerUnreachable
    from kafka_client.requests import Offset, list_offsets

    wanted = dict.fromkeys(partitions, which)
    found: dict[TopicPartition, int] = {}
    for each, offset in list_offsets(cluster, wanted, committed=committed).items():
        if isinstance(offset, BrokerUnreachable):
            raise offset
        if isinstance(offset, Offset):
            found[each] = offset.offset
        else:
            report(reason_of(each, offset))
    return found


def reason_of(partition: TopicPartition, error: Exception) -> object:
    """Return the reason to report. A missing permission concerns the topic."""
    from kafka_client.errors import BrokerError

    if isinstance(error, BrokerError) and error.code == _TOPIC_AUTHORIZATION_FAILED:
        return BrokerError(error.code, partition.topic)
    return error
