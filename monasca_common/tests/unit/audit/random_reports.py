# SPDX-License-Identifier: Apache-2.0
"""Reports of several tiers and topics with everything that may go wrong: losses, surpluses, duplicates, late deltas,
restarts, reports that come twice and in any order, clocks that are wrong, and buckets of another length."""

from msgspec import structs

from monasca_common.audit.reports import AHEAD_MS, AuditCount, AuditReport, HandledRange
from monasca_common.audit.runs import runs_of

BUCKET_SECONDS = 60
_BUCKET_MS = BUCKET_SECONDS * 1000
_READERS = (("database", "1_metrics"), ("spark", "spark-archive"), ("notification", "1_notification"))
_PARTITIONS, _BUCKETS, _TOPICS = 2, 3, 5


def random_reports(chance, start_ms):
    """``chance``: a `random.Random`. ``start_ms``: when the first bucket begins."""
    found = []
    for number in range(_TOPICS):
        found += _of_topic(chance, f"topic-{number}", start_ms)
    found = _joined(chance, found)
    found += [structs.replace(each, id=each.id + "-foreign", bucket_seconds=7) for each in chance.sample(found, 3)]
    found += chance.sample(found, len(found) // 4)  # sent again
    chance.shuffle(found)
    return found


def _of_topic(chance, topic, start_ms):
    found, ends = [], [0] * _PARTITIONS
    for bucket in range(_BUCKETS):
        bucket_ms = start_ms + bucket * _BUCKET_MS
        for partition in range(_PARTITIONS):
            offsets = range(ends[partition], ends[partition] + chance.randint(1, 30))
            ends[partition] = offsets.stop
            found += _sent(chance, topic, bucket_ms, len(offsets))
            found += _counted(chance, topic, bucket_ms, partition, offsets)
    for tier, application in _READERS:
        found += _read(chance, topic, start_ms, ends, tier, application)
    return found


def _sent(chance, topic, bucket_ms, messages):
    """In several deltas; sometimes more than arrived, or less."""
    messages = max(1, messages + chance.choice((0, 0, 0, 2, -2)))
    first = chance.randint(0, messages)
    tier = chance.choice(("producer", "api"))
    for part in filter(None, (first, messages - first)):
        yield _report(chance, tier, "agent", bucket_ms, AuditCount(topic, bucket_ms, part, part * 10, part * 5, 9))
    if not chance.randrange(10):
        ahead_ms = bucket_ms + 2 * AHEAD_MS
        yield _report(chance, tier, "agent", bucket_ms, AuditCount(topic, ahead_ms, 3))


def _counted(chance, topic, bucket_ms, partition, offsets):
    if not chance.randrange(15):
        return
    repeated = chance.sample(offsets, chance.randint(0, len(offsets) // 3))
    count = AuditCount(
        topic,
        bucket_ms,
        len(offsets),
        offsets={partition: runs_of(offsets)},
        duplicates={partition: runs_of(repeated)} if repeated else {},
    )
    yield _report(chance, "broker", "counter", bucket_ms, count)
    kept = [each for each in offsets if chance.randrange(20)]
    yield _report(
        chance, "mirror", "other", bucket_ms, structs.replace(count, offsets={partition: runs_of(kept)}, duplicates={})
    )


def _read(chance, topic, start_ms, ends, tier, application):
    """Batch by batch; some are passed over, some are never reported, and some follow a restart."""
    for partition, end in enumerate(ends):
        at = chance.choice((0, 0, 5))
        while at < end:
            following = min(end, at + chance.randint(1, 20))
            fate = chance.randrange(12)
            position = at if fate == 0 else None
            if fate == 1:
                yield _report(chance, tier, application, start_ms, handled=[HandledRange(topic, partition, at, at)])
            elif fate != 2:
                ranges = [HandledRange(topic, partition, at, following, start_ms + at, 7, position)]
                yield _report(chance, tier, application, start_ms, handled=ranges)
            at = following


def _report(chance, tier, application, sent_ms, *counts, handled=()):
    return AuditReport(
        id=f"{chance.getrandbits(64):x}",
        tier=tier,
        application=application,
        host="h",
        instance="i",
        sent_ms=sent_ms + chance.randint(0, 3 * _BUCKET_MS),
        bucket_seconds=BUCKET_SECONDS,
        counts=counts,
        handled=tuple(handled),
        since_ms=chance.choice((None, None, sent_ms)) if tier in ("broker", "mirror") else None,
    )


def _joined(chance, found):
    """Some reports of one tier become one, of several topics."""
    whole = {}
    for each in found:
        key = each.tier, each.application, each.since_ms, chance.randrange(5)
        one = whole.get(key)
        whole[key] = (
            each
            if one is None
            else structs.replace(one, counts=one.counts + each.counts, handled=one.handled + each.handled)
        )
    return list(whole.values())
