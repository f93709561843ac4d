// What programs do with ioredis, against the server at a port: `node ioredis.mjs MODULES PORT`.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, port] = process.argv.slice(2);
const { Redis } = createRequire(join(modules, "index.js"))("ioredis");

const clients = [];

function connect(options = {}) {
  const client = new Redis({ port: Number(port), maxRetriesPerRequest: 1, ...options });
  clients.push(client);
  return client;
}

function assertWithin(value, least, most) {
  assert.ok(least <= value && value <= most, `expected ${least} to ${most}, got ${value}`);
}

const checks = {
  async counts(redis) {
    assert.equal(await redis.set("n", 40), "OK");
    assert.equal(await redis.incr("n"), 41);
    assert.equal(await redis.incrby("n", 10), 51);
    assert.equal(await redis.decr("n"), 50);
    assert.equal(await redis.decrby("n", 8), 42);
    assert.equal(await redis.get("n"), "42");
    assert.deepEqual(await redis.mget("n", "missing"), ["42", null]);
    assert.equal(await redis.del("n"), 1);
    assert.equal(await redis.get("n"), null);
    await assert.rejects(redis.set("n", "text"), { message: "ERR value is not an integer or out of range" });
    assert.equal(await redis.exists("n"), 0);
  },

  async sets(redis) {
    assert.equal(await redis.mset("s1", 1, "s2", 2), "OK");
    assert.equal(await redis.mset({ s1: 1, s2: 2 }), "OK");
    assert.equal(await redis.msetnx("s2", 5, "s3", 5), 0);
    assert.equal(await redis.setnx("s3", 3), 1);
    assert.equal(await redis.setnx("s3", 4), 0);
    assert.equal(await redis.set("s3", 5, "NX"), null);
    assert.deepEqual(await redis.mget("s1", "s2", "s3"), ["1", "2", "3"]);
  },

  async expires(redis) {
    assert.equal(await redis.set("passing", 1, "EX", 60), "OK");
    assertWithin(await redis.ttl("passing"), 1, 60);
    assert.equal(await redis.setex("passing", 100, 2), "OK");
    assertWithin(await redis.ttl("passing"), 61, 100);
    assert.equal(await redis.psetex("passing", 30_000, 3), "OK");
    assertWithin(await redis.pttl("passing"), 1, 30_000);
    assert.equal(await redis.persist("passing"), 1);
    assert.equal(await redis.ttl("passing"), -1);
    assert.equal(await redis.expire("passing", 60), 1);
    assertWithin(await redis.ttl("passing"), 1, 60);
    assert.equal(await redis.get("passing"), "3");
  },

  async pipelines(redis) {
    const pipe = redis.pipeline();
    for (let i = 0; i < 1_000; i++) pipe.incr("piped");
    assert.deepEqual(await pipe.exec(), Array.from({ length: 1_000 }, (_, i) => [null, i + 1]));
    // Calls made in one turn of the event loop are sent together.
    const automatic = connect({ enableAutoPipelining: true });
    const values = await Promise.all(Array.from({ length: 100 }, () => automatic.incr("automatic")));
    assert.deepEqual(values, Array.from({ length: 100 }, (_, i) => i + 1));
  },

  async transactions(redis) {
    const replies = await redis.multi().set("t", 1).incr("t").get("t").exec();
    assert.deepEqual(replies, [[null, "OK"], [null, 2], [null, "2"]]);
    await redis.multi({ pipeline: false });
    assert.equal(await redis.incr("t"), "QUEUED");
    assert.equal(await redis.discard(), "OK");
    assert.equal(await redis.get("t"), "2");
  },

  async optimisticTransactions(redis) {
    await redis.set("o", 5);
    assert.equal(await redis.watch("o"), "OK");
    const value = Number(await redis.get("o"));
    assert.deepEqual(await redis.multi().set("o", value * 2).exec(), [[null, "OK"]]);
    assert.equal(await redis.get("o"), "10");

    await redis.watch("o");
    assert.equal(await connect().incr("o"), 11);
    assert.equal(await redis.multi().set("o", 99).exec(), null);
    assert.equal(await redis.get("o"), "11");

    await redis.watch("o");
    assert.equal(await connect().incr("o"), 12);
    assert.equal(await redis.unwatch(), "OK");
    assert.deepEqual(await redis.multi().incr("o").exec(), [[null, 13]]);
  },

  async otherDatabases(redis) {
    const selected = { message: /this connection selected database 1/ };
    // ioredis reports the refused SELECT to listeners only, and goes on.
    for (const enableReadyCheck of [true, false]) {
      const other = connect({ db: 1, enableReadyCheck });
      const errors = [];
      other.on("error", (error) => errors.push(error.message));
      // With its check it connects anew and gives up after a while, without it the commands are sent.
      const refusal = enableReadyCheck ? Error : selected;
      await assert.rejects(other.set("d", 1), refusal);
      await assert.rejects(other.incr("d"), refusal);
      await assert.rejects(other.get("d"), refusal);
      assert.equal(errors[0], "ERR DB index is out of range");
    }

    const later = connect();
    assert.equal(await later.ping(), "PONG");
    await assert.rejects(later.select(1), { message: "ERR DB index is out of range" });
    await assert.rejects(later.incr("d"), selected);
    const replies = await later.pipeline().incr("d").get("d").exec();
    replies.forEach(([error]) => assert.match(error.message, selected.message));

    assert.equal(await redis.exists("d"), 0);
    assert.equal(await later.select(0), "OK");
    assert.equal(await later.incr("d"), 1);
  },
};

const redis = connect();
await redis.flushall();
for (const [name, check] of Object.entries(checks)) {
  await check(redis);
  console.log("ok", name);
}
clients.forEach((client) => client.disconnect());
