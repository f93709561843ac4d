<?php
// What programs do with phpredis, against the server at the port given as the argument.

declare(strict_types=1);

[, $port] = $argv;

set_error_handler(static function (int $level, string $text, string $file, int $line): never {
    throw new ErrorException($text, 0, $level, $file, $line);
});

function connect(): Redis
{
    global $port;
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port, 60.0);
    return $redis;
}

function same(mixed $expected, mixed $actual): void
{
    if ($expected !== $actual) {
        throw new Exception('expected ' . var_export($expected, true) . ', got ' . var_export($actual, true));
    }
}

function within(int $least, int $most, int $actual): void
{
    if ($actual < $least || $actual > $most) {
        throw new Exception("expected $least to $most, got $actual");
    }
}

/** The last error, without the zero byte that phpredis 5.3 leaves at its end. */
function last_error(Redis $redis): string
{
    $error = rtrim((string) $redis->getLastError(), "\0");
    $redis->clearLastError();
    return $error;
}

function counts(Redis $redis): void
{
    same(true, $redis->set('n', 40));
    same(41, $redis->incr('n'));
    same(51, $redis->incr('n', 10));
    same(61, $redis->incrBy('n', 10));
    same(60, $redis->decr('n'));
    same(42, $redis->decrBy('n', 18));
    same('42', $redis->get('n'));
    same(['42', false], $redis->mGet(['n', 'missing']));
    same(1, $redis->exists('n'));
    same(1, $redis->del('n'));
    same(false, $redis->get('n'));
    // A text is refused, and the refusal can be seen.
    same(false, $redis->set('n', 'text'));
    same('ERR value is not an integer or out of range', last_error($redis));
    same(0, $redis->exists('n'));
}

function sets(Redis $redis): void
{
    same(true, $redis->mSet(['s1' => 1, 's2' => 2]));
    same(false, $redis->mSetNx(['s2' => 5, 's3' => 5]));
    same(true, $redis->setNx('s3', 3));
    same(false, $redis->setNx('s3', 4));
    same(['1', '2', '3'], $redis->mGet(['s1', 's2', 's3']));
    same('3', $redis->getSet('s3', '33'));
    same(false, $redis->set('s3', 5, ['nx']));
    same('33', $redis->get('s3'));
}

function expires(Redis $redis): void
{
    // Sent as SETEX.
    same(true, $redis->set('passing', 1, 60));
    within(1, 60, $redis->ttl('passing'));
    same(true, $redis->setEx('passing', 100, 2));
    within(61, 100, $redis->ttl('passing'));
    same(true, $redis->pSetEx('passing', 30_000, 3));
    within(1, 30_000, $redis->pttl('passing'));
    same(true, $redis->set('passing', 4, ['xx', 'ex' => 60]));
    within(31, 60, $redis->ttl('passing'));
    same('4', $redis->get('passing'));
    same(true, $redis->persist('passing'));
    same(-1, $redis->ttl('passing'));
    same(true, $redis->expire('passing', 60));
    within(1, 60, $redis->ttl('passing'));
    same(true, $redis->expireAt('passing', 1));
    same(false, $redis->get('passing'));
}

function pipelines(Redis $redis): void
{
    $pipe = $redis->pipeline();
    for ($i = 0; $i < 1_000; $i++) {
        $pipe->incr('piped');
    }
    same(range(1, 1_000), $pipe->exec());
}

function transactions(Redis $redis): void
{
    same([true, 2, '2'], $redis->multi()->set('t', 1)->incr('t')->get('t')->exec());
    $redis->multi()->incr('t');
    $redis->discard();
    same('2', $redis->get('t'));
}

function optimistic_transactions(Redis $redis): void
{
    $redis->set('o', 5);
    same(true, $redis->watch('o'));
    $value = (int) $redis->get('o');
    same([true], $redis->multi()->set('o', $value * 2)->exec());
    same('10', $redis->get('o'));

    $redis->watch(['o']);
    $value = (int) $redis->get('o');
    same(11, connect()->incr('o'));
    same(false, $redis->multi()->set('o', $value * 2)->exec());
    same('11', $redis->get('o'));

    $redis->watch('o');
    same(12, connect()->incr('o'));
    same(true, $redis->unwatch());
    same([13], $redis->multi()->incr('o')->exec());
}

function other_databases(Redis $redis): void
{
    $other = connect();
    same(false, $other->select(1));
    same('ERR DB index is out of range', last_error($other));
    // A program that does not look goes on; nothing it sends is executed.
    foreach ([fn() => $other->set('d', 1), fn() => $other->incr('d'), fn() => $other->get('d')] as $call) {
        same(false, $call());
        same(true, str_contains(last_error($other), 'this connection selected database 1'));
    }
    same(0, $redis->exists('d'));
    same(true, $other->select(0));
    same(1, $other->incr('d'));
}

$redis = connect();
$redis->flushAll();
foreach (['counts', 'sets', 'expires', 'pipelines', 'transactions', 'optimistic_transactions', 'other_databases'] as $check) {
    $check($redis);
    echo "ok $check\n";
}
