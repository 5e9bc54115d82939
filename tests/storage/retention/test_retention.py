"""Which segments go: tables of facts, the model of Kafka's loop, policies of others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.errors import InvalidConfig
from storage.retention.retention import (
    Doomed,
    Effect,
    LogFacts,
    SegmentFacts,
    decide,
    effects,
    find_policy,
    kafka,
)
from storage.settings.config import LONG_MAX, LogConfig
from tests.compaction_model import ModelLog, ModelSegment
from tests.retention_model import doomed

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
FOREVER = LogConfig(retention_ms=-1)


def facts(
    *sizes: int,
    bases: Sequence[int] | None = None,
    end: int | None = None,
    ages_ms: Sequence[int] | None = None,
    mtime_ages_ms: Sequence[int] | None = None,
    start: int = 0,
    high_watermark: int | None = None,
    kept_from: int = LONG_MAX,
) -> LogFacts:
    """Segments of these sizes; by default of ten offsets each, of now, up to the log end."""
    bases = bases or [10 * number for number in range(len(sizes))]
    end = bases[-1] + 10 if end is None else end
    ages = ages_ms or [0] * len(sizes)
    mtime_ages = mtime_ages_ms or ages
    segments = [
        SegmentFacts(
            base, following, size, NOW_MS - age, NOW_MS - mtime_age, number == len(sizes) - 1
        )
        for number, (base, following, size, age, mtime_age) in enumerate(
            zip(bases, [*bases[1:], end], sizes, ages, mtime_ages, strict=True)
        )
    ]
    high_watermark = end if high_watermark is None else high_watermark
    return LogFacts(tuple(segments), start, high_watermark, kept_from)


def going(log: LogFacts, config: LogConfig = FOREVER) -> list[int]:
    """The bases of the segments that go."""
    decision = decide(log, config, NOW_MS)
    assert decision.fault is None
    assert [doomed.segment for doomed in decision.doomed] == list(
        log.segments[: len(decision.doomed)]
    )
    return [doomed.segment.base_offset for doomed in decision.doomed]


# -- Kafka's policy --------------------------------------------------------------------------------


def test_a_setting_that_is_unknown_deletes_nothing() -> None:
    log = facts(100, 100, 100, ages_ms=[9, 9, 9], start=15)
    config = LogConfig(unknown=("retention.ms",), retention_ms=5, retention_bytes=0)
    assert going(log, config) == [0]


def test_each_says_why_with_its_numbers() -> None:
    log = facts(100, 100, 100, 100, ages_ms=[9, 9, 9, 0], start=10)
    config = LogConfig(retention_ms=5, retention_bytes=150)
    said = [doomed.why for doomed in decide(log, config, NOW_MS).doomed]
    assert said == [
        "its last offset, 9, is below the log start offset, 10",
        "200 bytes remain without it, retention.bytes=150",
        "its newest record is 9 ms old, retention.ms=5",
    ]


# -- what each setting deletes now and next --------------------------------------------------------

SIZE, TIME = "retention.bytes=250", "retention.ms=20"


@pytest.mark.parametrize(
    ("sizes", "ages_ms", "config", "expected"),
    [
        ([100, 100], [9, 9], {}, []),
        ([100, 100], [9, 9], {"cleanup_policy": ("compact",), "retention_ms": 1}, []),
        ([100, 100], [9, 9], {"unknown": ("retention.ms",), "retention_ms": 1}, []),
        # All is in the newest segment.
        ([500], [5], {"retention_bytes": 250}, [Effect(SIZE, 0)]),
        ([500], [5], {"retention_ms": 20}, [Effect(TIME, 0, 500, next_ms=NOW_MS + 16)]),
        ([500], [21], {"retention_ms": 20}, [Effect(TIME, 500)]),
        ([0], [21], {"retention_ms": 20}, [Effect(TIME, 0)]),
        # Some now, some later.
        ([100, 90, 200], [5, 5, 5], {"retention_bytes": 250}, [Effect(SIZE, 100, 90, None, 50)]),
        ([100, 90, 50], [5, 5, 5], {"retention_bytes": 250}, [Effect(SIZE, 0, 100, None, 110)]),
        (
            [100, 90, 80, 70],
            [30, 15, 16, 3],
            {"retention_ms": 20},
            # The third is older than the second, and goes with it.
            [Effect(TIME, 100, 170, next_ms=NOW_MS + 6)],
        ),
        # Each taken alone.
        (
            [100, 100, 200],
            [30, 30, 5],
            {"retention_bytes": 250, "retention_ms": 20},
            [Effect(SIZE, 100, 100, None, 50), Effect(TIME, 200, 200, next_ms=NOW_MS + 16)],
        ),
        (
            [100, 100, 200],
            [DAY_MS * 9, DAY_MS * 9, 5],
            {"retention_bytes": 250, "kafkafs_retention_policy": "mtime:7"},
            [Effect("kafkafs.retention.policy=mtime:7", 200)],
        ),
    ],
)
def test_what_each_setting_deletes(
    sizes: list[int], ages_ms: list[int], config: dict[str, object], expected: list[Effect]
) -> None:
    log = facts(*sizes, ages_ms=ages_ms)
    settings = replace(FOREVER, **config)  # type: ignore[arg-type]
    assert effects(log, settings, NOW_MS) == expected
    for each in expected:
        if each.next_ms is not None:
            (later,) = [
                e for e in effects(log, settings, each.next_ms) if e.setting == each.setting
            ]
            assert later.size == each.size + each.next_size, "as it foretold"


def test_what_the_log_start_deletes() -> None:
    log = facts(100, 100, 200, start=12)
    config = replace(FOREVER, retention_bytes=150)
    assert effects(log, config, NOW_MS) == [
        Effect("log start 12", 100),
        Effect("retention.bytes=150", 100),
    ]


@pytest.mark.parametrize(
    ("kept_from", "expected", "next_size"),
    [(0, [], 0), (9, [], 0), (10, [0], 0), (29, [0, 10], 0), (30, [0, 10], 200)],
)
def test_records_of_restore_points_stay(
    kept_from: int, expected: list[int], next_size: int
) -> None:
    log = facts(100, 100, 200, 50, ages_ms=[30, 30, 5, 5], kept_from=kept_from)
    for config, following in (
        (replace(FOREVER, retention_bytes=150), {"next_after": 100}),
        (replace(FOREVER, retention_ms=20), {"next_ms": NOW_MS + 16}),
    ):
        assert going(log, config) == expected
        (effect,) = effects(log, config, NOW_MS)
        is_last = not next_size
        assert (
            effect[1:]
            == Effect("", 100 * len(expected), next_size, **{} if is_last else following)[1:]
        )


@st.composite
def logs(draw: st.DrawFn) -> LogFacts:
    count = draw(st.integers(1, 7))
    sizes = draw(st.lists(st.integers(0, 4) | st.just(2**62), min_size=count, max_size=count))
    spans = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    bases = [0, *itertools.accumulate(spans)]
    end = bases[-2] if sizes[-1] == 0 else bases[-1]
    ages = draw(st.lists(st.integers(-2, 6), min_size=count, max_size=count))
    return facts(
        *sizes,
        bases=bases[:-1],
        end=end,
        ages_ms=ages,
        start=draw(st.integers(0, end)),
        high_watermark=draw(st.integers(0, end) | st.just(end)),
    )


configs = st.builds(
    LogConfig,
    cleanup_policy=st.sampled_from([(), ("delete",), ("compact",), ("compact", "delete")]),
    retention_bytes=st.integers(-1, 20) | st.sampled_from([-(2**63), 2**62, LONG_MAX]),
    retention_ms=st.integers(-1, 6),
)


@given(logs(), configs)
@example(facts(0, 4, 4), replace(FOREVER, retention_bytes=8))
def test_as_kafkas_loop(log: LogFacts, config: LogConfig) -> None:
    segments = [
        ModelSegment(each.base_offset, (), each.size, 0, 0, each.largest_timestamp_ms, 0)
        for each in log.segments
    ]
    end = log.segments[-1].next_offset
    model = ModelLog(tuple(segments), log.log_start_offset, end, end, {})
    assert len(going(log, config)) == doomed(
        model,
        policy=config.cleanup_policy,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        now_ms=NOW_MS,
        high_watermark=log.high_watermark,
    )


# -- policies by name ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "age_ms", "goes"),
    [
        ("7", 7 * DAY_MS, False),
        ("7", 7 * DAY_MS + 1, True),
        ("7d", 7 * DAY_MS + 1, True),
        ("36h", 36 * 3_600_000, False),
        ("36h", 36 * 3_600_000 + 1, True),
        ("5m", 300_001, True),
        ("5s", 5001, True),
        ("1.5", 36 * 3_600_000, False),
        ("0", 1, True),
        ("0", 0, False),
        ("0", -9, False),
    ],
)
def test_files_by_their_mtime(argument: str, age_ms: int, goes: bool) -> None:
    """The times of records do not count."""
    config = LogConfig(kafkafs_retention_policy=f"mtime:{argument}", retention_bytes=0)
    log = facts(9, 9, 9, ages_ms=[0, 0, 0], mtime_ages_ms=[age_ms, age_ms, -5])
    assert going(log, config) == ([0, 10] if goes else [])
    compacted = replace(config, cleanup_policy=("compact",))
    assert going(log._replace(log_start_offset=10), compacted) == [0]


SOMEBODYS = '''
from storage.retention.retention import Doomed, oldest_while


def even(argument):
    """Segments with even bases, while there are any."""
    def policy(facts, config, now_ms):
        return oldest_while(facts, lambda s: None if s.base_offset % 20 else f"even {argument}")
    return policy


def everything(argument):
    return lambda facts, config, now_ms: [Doomed(segment, "all") for segment in facts.segments]


def raises(argument):
    def policy(facts, config, now_ms):
        raise KeyError("no such thing")
    return policy


def answers(argument):
    """Return what the argument names, with two segments."""
    return {
        "tail": lambda facts, config, now_ms: [Doomed(facts.segments[-1], "")],
        "gap": lambda facts, config, now_ms: [Doomed(facts.segments[n], "") for n in (0, 2)],
        "twice": lambda facts, config, now_ms: [Doomed(facts.segments[0], "")] * 2,
        "many": lambda facts, config, now_ms: [Doomed(s, "") for s in facts.segments * 2],
        "made up": lambda facts, config, now_ms: [Doomed(facts.segments[0]._replace(size=1), "")],
        "none": lambda facts, config, now_ms: None,
        "number": lambda facts, config, now_ms: 3,
        "bases": lambda facts, config, now_ms: [0],
        "segments": lambda facts, config, now_ms: list(facts.segments),
        "exit": lambda facts, config, now_ms: sorted(facts.segments)[99],
    }[argument]


def refuses(argument):
    raise ValueError("to its taste")


not_callable = 3
no_policy = str
'''


@pytest.fixture
def somebodys_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with policies, as if it were installed."""
    (tmp_path / "somebodys_policies.py").write_text(SOMEBODYS)
    information = tmp_path / "somebodys_policies-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-policies\n")
    names = ("even", "everything", "raises", "answers", "refuses", "not_callable", "no_policy")
    lines = [f"{name} = somebodys_policies:{name}\n" for name in (*names, "missing")]
    lines += ["gone = no_such_module_anywhere:gone\n", "kafka = somebodys_policies:everything\n"]
    (information / "entry_points.txt").write_text("[kafkafs.retention]\n" + "".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    find_policy.cache_clear()


def of_somebody(policy: str, **others: int) -> LogConfig:
    return LogConfig(kafkafs_retention_policy=policy, retention_ms=others.pop("retention_ms", -1))


@pytest.mark.usefixtures("somebodys_package")
def test_a_policy_of_somebody() -> None:
    log = facts(9, 9, 9)
    decision = decide(log, of_somebody("even:nice"), NOW_MS)
    assert decision.doomed == (Doomed(log.segments[0], "even nice"),)
    # It gets the segments that the log start leaves, and is not called if nothing may be deleted.
    assert going(log._replace(log_start_offset=10), of_somebody("even:x")) == [0]
    config = replace(of_somebody("everything"), cleanup_policy=("compact",))
    assert going(log, config) == []


@pytest.mark.usefixtures("somebodys_package")
def test_what_holds_for_every_policy() -> None:
    assert going(facts(9, 9, 9), of_somebody("everything")) == [0, 10, 20]
    assert going(facts(9, 9, 0, end=20), of_somebody("everything")) == [0, 10]
    assert going(facts(9, 9, 9, high_watermark=15), of_somebody("everything")) == [0]
    assert find_policy("kafka") is kafka, "nobody takes this name's place"


@pytest.mark.usefixtures("somebodys_package")
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("raises", "KeyError: 'no such thing'"),
        ("answers:tail", "returned segment 20, but the oldest is 0"),
        ("answers:gap", "returned segment 20, but the oldest is 10"),
        ("answers:twice", "returned segment 0, but the oldest is 10"),
        ("answers:many", "returned 6 segments, but there are only 3"),
        ("answers:made up", "returned segment 0, but the oldest is 0"),
        ("answers:none", "TypeError"),
        ("answers:number", "TypeError"),
        ("answers:bases", "TypeError"),
        ("answers:segments", "ValueError"),
        ("answers:exit", "IndexError"),
        ("gone-since", "unknown retention policy 'gone-since'"),
    ],
)
def test_a_policy_that_does_wrong_deletes_nothing_and_says_so(policy: str, reason: str) -> None:
    decision = decide(facts(9, 9, 9), of_somebody(policy), NOW_MS)
    assert decision.doomed == ()
    assert decision.fault is not None
    assert decision.fault.startswith(f"retention policy {policy} failed, so it deletes nothing: ")
    assert reason in decision.fault


@pytest.mark.usefixtures("somebodys_package")
def test_the_log_start_holds_whatever_a_policy_does() -> None:
    log = facts(9, 9, 9, start=10)
    decision = decide(log, of_somebody("raises"), NOW_MS)
    assert [doomed.segment.base_offset for doomed in decision.doomed] == [0]
    assert decision.fault is not None


@pytest.mark.usefixtures("somebodys_package")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("refuses:this", "'this' is not to its taste"),
        ("answers:that", "KeyError: 'that'"),
        ("gone", "ModuleNotFoundError"),
        ("missing", "AttributeError"),
        ("not_callable", "TypeError"),
        ("no_policy:x", "does not return a function"),
        ("nobodys", "unknown retention policy 'nobodys'; available: answers, even,"),
    ],
)
def test_a_policy_that_cannot_be_had(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        find_policy(text)
    assert reason in str(raised.value)


@pytest.mark.usefixtures("somebodys_package")
def test_a_name_that_two_packages_have(tmp_path: Path) -> None:
    other = tmp_path / "others-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: others\n")
    (other / "entry_points.txt").write_text("[kafkafs.retention]\neven = others:even\n")
    with pytest.raises(InvalidConfig, match="even is ambiguous: others:even, somebodys_policies"):
        find_policy("even")


def test_the_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed as it says."""
    text = (Path(__file__).parents[3] / "docs/dev/storage-library.md").read_text()
    code = text.split("## A retention policy of your own")[1].split("```python\n")[1]
    (tmp_path / "my_policies.py").write_text(code.split("```")[0])
    information = tmp_path / "my_policies-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\n")
    entry_points = "[kafkafs.retention]\nnewest = my_policies:newest\n"
    (information / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    find_policy.cache_clear()
    log = facts(9, 9, 9)
    for argument, expected in [
        ("1", [0, 10]),
        ("2", [0]),
        ("3", []),
        ("7", []),
        ("0", [0, 10, 20]),
    ]:
        decision = decide(log, of_somebody(f"newest:{argument}"), NOW_MS)
        assert [doomed.segment.base_offset for doomed in decision.doomed] == expected
        assert {doomed.why for doomed in decision.doomed} <= {f"{argument} newer ones stay"}
    with pytest.raises(InvalidConfig, match="a number of segments"):
        find_policy("newest:x")
