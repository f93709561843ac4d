// What programs do with Jedis, against the server at the port and in the protocol version given as arguments.

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.params.SetParams;

@SuppressWarnings("deprecation")
final class Client {
    private static HostAndPort server;
    private static RedisProtocol protocol;

    /** A single connection, without a pool. */
    private static Jedis connect(int database) {
        return new Jedis(server, config(database));
    }

    private static DefaultJedisClientConfig config(int database) {
        return DefaultJedisClientConfig.builder()
                .protocol(protocol)
                .database(database)
                .timeoutMillis(60_000)
                .build();
    }

    private static void same(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError("expected " + expected + ", got " + actual);
        }
    }

    private static void within(long least, long most, long actual) {
        if (actual < least || actual > most) {
            throw new AssertionError("expected " + least + " to " + most + ", got " + actual);
        }
    }

    /** The message of the exception that the call must end with. */
    private static String refused(Runnable call) {
        try {
            call.run();
        } catch (JedisException exception) {
            return exception.getMessage();
        }
        throw new AssertionError("not refused");
    }

    private static void counts(RedisClient redis) {
        same("OK", redis.set("n", "40"));
        same(41L, redis.incr("n"));
        same(51L, redis.incrBy("n", 10));
        same(50L, redis.decr("n"));
        same(42L, redis.decrBy("n", 8));
        same("42", redis.get("n"));
        var some = new ArrayList<String>();
        some.add("42");
        some.add(null);
        same(some, redis.mget("n", "missing"));
        same(1L, redis.del("n"));
        same(null, redis.get("n"));
        same("ERR value is not an integer or out of range", refused(() -> redis.set("n", "text")));
        same(false, redis.exists("n"));
    }

    private static void sets(RedisClient redis) {
        same("OK", redis.mset("s1", "1", "s2", "2"));
        same(0L, redis.msetnx("s2", "5", "s3", "5"));
        same(1L, redis.setnx("s3", "3"));
        same(0L, redis.setnx("s3", "4"));
        same(null, redis.set("s3", "5", SetParams.setParams().nx()));
        same(List.of("1", "2", "3"), redis.mget("s1", "s2", "s3"));
        same("3", redis.setGet("s3", "33"));
    }

    private static void expires(RedisClient redis) {
        same("OK", redis.set("passing", "1", SetParams.setParams().ex(60)));
        within(1, 60, redis.ttl("passing"));
        same("OK", redis.setex("passing", 100, "2"));
        within(61, 100, redis.ttl("passing"));
        same("OK", redis.psetex("passing", 30_000, "3"));
        within(1, 30_000, redis.pttl("passing"));
        same(1L, redis.persist("passing"));
        same(-1L, redis.ttl("passing"));
        same(1L, redis.expire("passing", 60));
        within(1, 60, redis.ttl("passing"));
        same("3", redis.get("passing"));
    }

    private static void pipelines(RedisClient redis) {
        var replies = new ArrayList<Response<Long>>();
        try (var pipe = redis.pipelined()) {
            for (int i = 0; i < 1_000; i++) {
                replies.add(pipe.incr("piped"));
            }
            pipe.sync();
        }
        for (int i = 0; i < 1_000; i++) {
            same(i + 1L, replies.get(i).get());
        }
    }

    private static void transactions(RedisClient redis) {
        try (AbstractTransaction transaction = redis.multi()) {
            transaction.set("t", "1");
            Response<Long> value = transaction.incr("t");
            transaction.get("t");
            same(List.of("OK", 2L, "2"), transaction.exec());
            same(2L, value.get());
        }
        try (AbstractTransaction transaction = redis.multi()) {
            transaction.incr("t");
            same("OK", transaction.discard());
        }
        same("2", redis.get("t"));
    }

    private static void optimisticTransactions(RedisClient redis) {
        redis.set("o", "5");
        try (Jedis jedis = connect(0)) {
            same("OK", jedis.watch("o"));
            long value = Long.parseLong(jedis.get("o"));
            Transaction transaction = jedis.multi();
            transaction.set("o", Long.toString(value * 2));
            same(List.of("OK"), transaction.exec());
            same("10", redis.get("o"));

            jedis.watch("o");
            same(11L, redis.incr("o"));
            transaction = jedis.multi();
            transaction.set("o", "99");
            same(null, transaction.exec());
            same("11", redis.get("o"));

            jedis.watch("o");
            same(12L, redis.incr("o"));
            same("OK", jedis.unwatch());
            transaction = jedis.multi();
            transaction.incr("o");
            same(List.of(13L), transaction.exec());
        }
        // The same over the pool of connections.
        try (AbstractTransaction transaction = redis.transaction(false)) {
            same("OK", transaction.watch("o"));
            redis.incr("o");
            transaction.multi();
            transaction.set("o", "99");
            same(null, transaction.exec());
        }
        same("14", redis.get("o"));
    }

    private static void otherDatabases(RedisClient redis) {
        String outOfRange = "ERR DB index is out of range";
        same(outOfRange, refused(() -> connect(1).incr("d")));
        try (var pool = RedisClient.builder().hostAndPort(server).clientConfig(config(1)).build()) {
            refused(() -> pool.incr("d"));
        }
        try (Jedis jedis = connect(0)) {
            same(outOfRange, refused(() -> jedis.select(1)));
            List<Runnable> calls = List.of(() -> jedis.set("d", "1"), () -> jedis.incr("d"), () -> jedis.get("d"));
            for (Runnable call : calls) {
                same(true, refused(call).contains("this connection selected database 1"));
            }
            same(false, redis.exists("d"));
            same("OK", jedis.select(0));
            same(1L, jedis.incr("d"));
        }
    }

    private static void check(String name, RedisClient redis, Consumer<RedisClient> check) {
        check.accept(redis);
        System.out.println("ok " + name);
    }

    public static void main(String[] args) {
        server = new HostAndPort("127.0.0.1", Integer.parseInt(args[0]));
        protocol = args[1].equals("3") ? RedisProtocol.RESP3 : RedisProtocol.RESP2;
        try (var redis = RedisClient.builder().hostAndPort(server).clientConfig(config(0)).build()) {
            redis.flushAll();
            check("counts", redis, Client::counts);
            check("sets", redis, Client::sets);
            check("expires", redis, Client::expires);
            check("pipelines", redis, Client::pipelines);
            check("transactions", redis, Client::transactions);
            check("optimisticTransactions", redis, Client::optimisticTransactions);
            check("otherDatabases", redis, Client::otherDatabases);
        }
    }
}
