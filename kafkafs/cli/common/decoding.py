"""The option `--decode` of `kafkafs cat` and `consume`, and those that go with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
from click.core import ParameterSource

from kafkafs.cli.common.ending import end, fail, warn
from kafkafs.cli.common.mount_files import Opened, patiently
from kafkafs.cli.common.views import path_in_topic
from kafkafs.cli.common.words import options_as
from storage.plural import counted

if TYPE_CHECKING:
    from kafkafs.schemas.choice import Choice, Schemas
    from kafkafs.schemas.lines import LineDecoder


class Decoding(NamedTuple):
    """The options."""

    key: Choice
    value: Choice
    value_only: bool
    iso_times: bool
    avro_json: bool
    strict: bool


def _decoding(
    decode: bool,
    value_only: bool,
    value_schema: str,
    key_schema: str,
    decode_times: str,
    avro_json: bool,
    strict: bool,
) -> Decoding | None:
    if not decode:
        context = click.get_current_context()
        for name in signature(_decoding).parameters:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.replace('_', '-')} requires --decode")
        return None
    key, value = _choice("key", key_schema), _choice("value", value_schema)
    return Decoding(key, value, value_only, decode_times == "iso", avro_json, strict)


def _choice(field: str, text: str) -> Choice:
    from kafkafs.schemas.choice import parse_choice
    from kafkafs.schemas.errors import SchemaError

    try:
        return parse_choice(text)
    except SchemaError as error:
        raise click.BadParameter(str(error), param_hint=f"--{field}-schema") from None


#: The options. The parameter of the command is `decoding`, a Decoding or None.
decode_options = options_as(
    "decoding",
    _decoding,
    click.option("--decode", is_flag=True, help="Print JSON lines with decoded keys and values."),
    click.option("--value-only", is_flag=True, help="With --decode: print only the values."),
    click.option(
        "--value-schema",
        metavar="SCHEMA",
        default="auto",
        help=(
            "The schema of values: auto, none, a file with an Avro schema, id:ID, or "
            "subject:NAME[:VERSION]."
        ),
    ),
    click.option(
        "--key-schema",
        metavar="SCHEMA",
        default="auto",
        help="The schema of keys, in the same forms.",
    ),
    click.option(
        "--decode-times",
        type=click.Choice(["number", "iso"]),
        default="number",
        help="Format of decoded dates and times.",
    ),
    click.option(
        "--avro-json",
        is_flag=True,
        help="Print the JSON of Avro's specification: unions with type names, bytes as strings.",
    ),
    click.option(
        "--strict", is_flag=True, help="End with exit status 1 if a record cannot be decoded."
    ),
)


def view_to_decode(view: str) -> str:
    """Return the view whose lines are decoded. UsageError if the user has given another view."""
    source = click.get_current_context().get_parameter_source("view")
    if view != "jsonl" and (source is not ParameterSource.DEFAULT or view != "values"):
        raise click.UsageError(f"--decode prints lines of jsonl, not of {view}")
    return "jsonl"


class TopicDecoders:
    """Decodes the `jsonl` lines of topics."""

    def __init__(self, decoding: Decoding, schemas: Schemas) -> None:
        self._decoding = decoding
        self._schemas = schemas
        self._decoders: dict[str, LineDecoder] = {}

    def decoder_of(self, topic: str) -> LineDecoder:
        """Errors: SchemaError, OSError."""
        from kafkafs.schemas.lines import LineDecoder

        found = self._decoders.get(topic)
        if found is None:
            key, value, value_only = self._decoding[:3]
            found = self._decoders[topic] = LineDecoder(
                topic, key, value, self._schemas, _read_schema, value_only=value_only
            )
        return found

    @property
    def failed(self) -> int:
        """How many records have an error."""
        return sum(decoder.failed for decoder in self._decoders.values())


@contextmanager
def topic_decoders(decoding: Decoding, opened: Opened) -> Iterator[TopicDecoders]:
    """Yield the decoders. At the end, say how many records have an error; `--strict` exits.

    `opened` opens the topic `_schemas`. Errors: OSError, SchemaError.
    """
    from kafkafs.schemas.choice import Schemas
    from kafkafs.schemas.registry_topic import REGISTRY_TOPIC, RegistryTopic

    with ExitStack() as stack:
        registry = None
        if {decoding.key.kind, decoding.value.kind} & {"auto", "id", "subject"}:
            with suppress(FileNotFoundError):
                file = opened(REGISTRY_TOPIC, *path_in_topic("jsonl", "0"))
                read = stack.enter_context(file)
                registry = RegistryTopic(
                    lambda position, size: patiently(lambda: read(position, size))
                )
        schemas = Schemas(registry, iso_times=decoding.iso_times, avro_json=decoding.avro_json)
        decoders = TopicDecoders(decoding, schemas)
        yield decoders
    if decoders.failed:
        warn(f"{counted(decoders.failed, 'record')} could not be decoded")
        end(found=decoding.strict)


def _read_schema(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise fail(f"{path}: not UTF-8, so it is not an Avro schema") from None
