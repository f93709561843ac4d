"""What programs do with redis-py, against the server at the port and in the protocol version given as arguments."""

import sys
import threading

import redis

PORT, PROTOCOL = int(sys.argv[1]), int(sys.argv[2])


def connect(**options):
    return redis.Redis(port=PORT, protocol=PROTOCOL, socket_timeout=60, **options)


def counts(r):
    assert r.set("n", 40) is True
    assert r.incr("n") == 41
    assert r.incrby("n", 10) == 51
    assert r.decr("n", 9) == 42
    assert r.get("n") == b"42"
    assert connect(decode_responses=True).get("n") == "42"
    assert r.mget("n", "missing") == [b"42", None]
    assert r.set("n", 1, nx=True) is None
    assert r.set("n", 1, get=True) == b"42"
    assert r.getdel("n") == b"1"
    assert r.exists("n") == 0
    assert r.type("n") == b"none"
    try:
        r.set("n", "text")
        raise AssertionError("a text was taken for a number")
    except redis.ResponseError as error:
        assert "not an integer" in str(error), error


def expires(r):
    r.set("passing", 5, ex=100)
    assert 0 < r.ttl("passing") <= 100
    assert r.persist("passing") is True
    assert r.ttl("passing") == -1
    assert r.expire("passing", 50, nx=True) is True
    assert r.expiretime("passing") > 1_700_000_000
    assert r.delete("passing") == 1


def pipelines(r):
    pipe = r.pipeline(transaction=False)
    for _ in range(20_000):
        pipe.incr("piped")
    assert pipe.execute() == list(range(1, 20_001))
    pipe.get("piped").echo("between").execute_command("NO.SUCH")
    answers = pipe.execute(raise_on_error=False)
    assert answers[:2] == [b"20000", b"between"], answers
    assert isinstance(answers[2], redis.ResponseError) and "unknown command" in str(answers[2]), answers


def transactions(r):
    with r.pipeline(transaction=True) as pipe:
        answers = pipe.set("t", 1).incr("t").get("t").mget("t", "missing").delete("t").execute()
    assert answers == [True, 2, b"2", [b"2", None], 1], answers
    # Atomic, as seen by other clients.
    stop = threading.Event()

    def move():
        mover = connect()
        while not stop.is_set():
            mover.pipeline(transaction=True).incr("left").decr("right").execute()

    r.pipeline().set("left", 0).set("right", 0).execute()
    thread = threading.Thread(target=move)
    thread.start()
    try:
        for _ in range(200):
            left, right = r.mget("left", "right")
            assert int(left) + int(right) == 0, (left, right)
    finally:
        stop.set()
        thread.join()


def optimistic_transactions(r):
    r.set("o", 5)
    interruptions = iter([True, True, False])

    def double(pipe):
        value = int(pipe.get("o"))
        if next(interruptions):
            connect().incr("o")
        pipe.multi()
        pipe.set("o", value * 2)

    assert r.transaction(double, "o") == [True]
    assert r.get("o") == b"14"
    with r.pipeline() as pipe:
        pipe.watch("o")
        connect().incr("o")
        pipe.multi()
        pipe.incr("o")
        try:
            pipe.execute()
            raise AssertionError("the counter had changed")
        except redis.WatchError:
            pass
    assert r.get("o") == b"15"


def more_commands(r):
    assert r.mset({"m1": 1, "m2": 2}) is True
    assert r.msetnx({"m2": 5, "m3": 5}) is False
    assert r.setnx("m3", 3) is True
    assert r.setex("m4", 100, 4) is True
    assert r.getex("m4", persist=True) == b"4" and r.ttl("m4") == -1
    assert sorted(r.keys("m[1-4]")) == [b"m1", b"m2", b"m3", b"m4"]
    assert r.rename("m4", "m5") is True and r.copy("m5", "m6") is True
    assert r.get("m6") == b"4" and r.strlen("m6") == 1 and r.touch("m1", "none") == 1
    assert r.object("encoding", "m1") == b"int" and r.memory_usage("m1") > 0
    assert r.role()[0] == b"master" and r.acl_whoami() in (b"default", "default")
    assert r.slowlog_len() == 0 and r.wait(0, 0) == 0
    assert r.client_info()["id"] == r.client_id()
    victim = connect(single_connection_client=True)
    assert r.client_kill_filter(_id=victim.client_id()) == 1
    assert r.info("commandstats")["cmdstat_setnx"]["calls"] >= 1
    assert r.flushdb() is True


def other_databases(r):
    try:
        connect(db=1).incr("n")
        raise AssertionError("counted in database 0")
    except redis.RedisError:
        pass
    assert r.exists("n") == 0


def walks(r):
    """A scan during writes returns every key that exists throughout, exactly once."""
    pipe = r.pipeline(transaction=False)
    for number in range(3_000):
        pipe.incr(f"stay:{number}")
    pipe.execute()
    stop = threading.Event()

    def write():
        writer, number = connect(), 0
        while not stop.is_set():
            pipe = writer.pipeline(transaction=False)
            for number in range(number, number + 50):
                pipe.incr(f"stay:{number % 3_000}").incr(f"stay:x{number}").delete(f"stay:x{number - 25}")
            pipe.execute()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for count in (None, 7, 1000):
            found = [key for key in r.scan_iter("stay:*", count=count) if not key.startswith(b"stay:x")]
            assert len(found) == 3_000, (count, len(found))
            assert len(set(found)) == 3_000, count
    finally:
        stop.set()
        thread.join()
    assert list(r.scan_iter("nothing:*")) == []


def tells(r):
    assert r.ping() is True
    assert r.echo("text") == b"text"
    info = r.info()
    assert info["redis_version"].startswith("7."), info
    assert info["db0"]["keys"] == r.dbsize(), (info["db0"], r.dbsize())
    assert r.info("clients")["connected_clients"] >= 1
    assert r.config_get("maxclients")["maxclients"].isdigit()
    assert set(r.config_get("append*")) == {"appendonly", "appendfsync"}
    named = connect(client_name="teller", single_connection_client=True)
    assert named.client_getname() in ("teller", b"teller")
    mine = [client for client in r.client_list() if client["name"] == "teller"]
    assert len(mine) == 1, r.client_list()
    assert int(mine[0]["id"]) == named.client_id()
    assert mine[0]["lib-name"] == "redis-py" and mine[0]["lib-ver"] == redis.__version__, mine
    assert mine[0]["resp"] == str(PROTOCOL), mine
    assert named.client_setname("another") is True
    assert r.command_count() == len(r.command()) > 40
    known, unknown = r.execute_command("COMMAND INFO", "incr", "no-such")
    assert known[:2] == [b"incr", 2] and unknown is None, (known, unknown)
    assert b"incr" in r.command_list()
    docs = r.execute_command("COMMAND DOCS", "incr")
    if PROTOCOL == 2:
        docs = {docs[0]: dict(zip(docs[1][::2], docs[1][1::2]))}
    assert docs[b"incr"][b"group"] == b"string", docs
    assert len(r.time()) == 2


client = connect()
client.flushall()
checks = (counts, expires, pipelines, transactions, optimistic_transactions, more_commands, other_databases, walks, tells)
for check in checks:
    check(client)
    print("ok", check.__name__)
