"""Who is asked, and who is left alone for a while."""

from collections import Counter

from tieline_server.engines.upstream.replicas import FAILURES, LONGEST, Replica, Replicas

URLS = [f"http://host{at}/v1" for at in range(4)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_conversation_stays_and_one_replica_less_moves_only_its_own() -> None:
    clock = Clock()
    four, three = (Replicas(urls, places=1, clock=clock) for urls in (URLS, URLS[:3]))
    names = [f"conversation {at}" for at in range(400)]
    homes = {name: four.order(name)[0].url for name in names}
    assert homes == {name: four.order(name)[0].url for name in names}
    assert min(Counter(homes.values()).values()) > 60
    for name in names:
        if homes[name] != URLS[3]:
            assert three.order(name)[0].url == homes[name]


def test_a_replica_is_shut_after_some_failures_in_a_row_for_longer_and_longer() -> None:
    replica = Replica(URLS[0], places=1)
    for _ in range(FAILURES - 1):
        replica.failed(0.0)
        assert replica.admits(0.0)
    replica.failed(0.0)
    assert not replica.admits(0.9)
    assert replica.admits(1.0)
    assert not replica.admits(1.0), "one tries, the others wait for what it finds"
    replica.failed(1.0)
    assert not replica.admits(2.9)
    for _ in range(20):
        replica.failed(3.0)
    assert replica.admits(3.0 + LONGEST)
    replica.worked()
    assert replica.admits(0.0)


def test_a_course_passes_over_who_is_shut() -> None:
    replicas = Replicas(URLS[:2], places=1, clock=Clock())
    first, second = replicas.order("x")
    for _ in range(FAILURES):
        replicas.failed(first)
    assert list(replicas.course("x", tries=3)) == [second]
    for _ in range(FAILURES):
        replicas.failed(second)
    assert list(replicas.course("x", tries=3)) == []
    assert replicas.opens_in() == 1.0


def test_a_course_comes_back_to_the_first_when_all_were_asked() -> None:
    replicas = Replicas(URLS[:2], places=1, clock=Clock())
    first, second = replicas.order("x")
    assert list(replicas.course("x", tries=3)) == [first, second, first]
