"""What the process lacks, and who hears of it."""

from tieline_server.runtime.readiness import DATABASE, ENGINE, Readiness


def test_it_is_ready_while_nothing_is_lacking() -> None:
    readiness = Readiness()
    assert readiness.ready
    readiness.lack(DATABASE, "it is away")
    readiness.lack(ENGINE, "it is loading")
    readiness.have(DATABASE)
    assert not readiness.ready
    assert readiness.lacking == {ENGINE: "it is loading"}
    readiness.have(ENGINE)
    assert readiness.ready


def test_who_listens_hears_changes_alone() -> None:
    readiness = Readiness()
    heard: list[bool] = []
    readiness.listen(lambda: heard.append(readiness.ready))
    readiness.have(DATABASE)
    readiness.lack(DATABASE, "it is away")
    readiness.lack(DATABASE, "it is away still")
    readiness.lack(ENGINE, "it is loading")
    readiness.have(DATABASE)
    readiness.have(ENGINE)
    assert heard == [False, True]
