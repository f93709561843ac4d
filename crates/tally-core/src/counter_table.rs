//! The resident counters: fixed-size cells in chunks, indexed by sharded hash tables.
//!
//! A counter with a key of up to 21 bytes costs one 102-byte cell and about eight bytes of index. Longer keys are
//! stored out of line, and so are expiries, because few counters have one. The index is sharded so that growing it
//! never blocks the partition for long: rehashing a hundred thousand entries takes milliseconds, ten million a second.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::batch::key_hash;
use crate::bits::Bits;
use crate::counter::{Counter, CounterState, PACKED_BYTES, Packed};
use crate::key::KeyRef;
use crate::time::Millis;

const INLINE_MAX: usize = 21;
const LONG: u8 = u8::MAX;
/// Overhead of a long key: its entry and the allocator's.
const LONG_KEY_BYTES: usize = 32;
/// Most bytes an expiry uses: an entry in a B-tree whose nodes may be half empty.
pub(crate) const EXPIRY_BYTES: usize = 40;
/// Cells are allocated in chunks of half a mebibyte, which is a size class of the allocator. Larger allocations are
/// rounded up to whole slices of the allocator, and with huge pages the unused rest is resident.
const CHUNK_CELLS: usize = (512 << 10) / size_of::<Cell>();
const SHARDS: usize = 64;
/// Most bytes a counter uses, out-of-line bytes excluded: its cell, its part of an index that is half full after
/// doubling, and its bits.
const COUNTER_BYTES: usize = size_of::<Cell>() + 24;

#[derive(Clone, Copy)]
struct Cell {
    /// Length of an inline key, or `LONG`.
    key_len: u8,
    /// The key itself, or the number of a long key in the first four bytes.
    key: [u8; INLINE_MAX],
    counter: Packed,
}

const _: () = assert!(size_of::<Cell>() == 102);

/// Identifies a counter in the table until it is removed.
pub(crate) type CellId = u32;

/// Counters by key.
pub(crate) struct CounterTable {
    seed: u64,
    index: Vec<HashTable<CellId>>,
    chunks: Vec<Box<[Cell]>>,
    /// Number of cells ever used. Those that are no longer live are in `free`.
    used: usize,
    free: Vec<CellId>,
    long_keys: Vec<Box<[u8]>>,
    free_long_keys: Vec<u32>,
    long_key_bytes: usize,
    expiries: BTreeMap<CellId, Millis>,
    /// The reference bits of the clock algorithm: touched since the hand last passed.
    recent: Bits,
    /// The clock hand, as an index of a word of bits.
    hand: usize,
    live: Bits,
    /// Cells that have a long key or an expiry.
    with_out_of_line: Bits,
}

/// Which counters to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    /// Any counters.
    Any,
    /// Only counters with out-of-line memory, which is freed.
    WithOutOfLine,
}

/// Bytes that a counter takes in memory, its share of the index included.
#[must_use]
pub fn counter_memory_bytes(key: KeyRef<'_>, expires_at: Option<Millis>) -> usize {
    let key = key.as_bytes().len();
    let long_key = if key <= INLINE_MAX { 0 } else { key + LONG_KEY_BYTES };
    COUNTER_BYTES + long_key + if expires_at.is_some() { EXPIRY_BYTES } else { 0 }
}

/// A pseudo-random number determined by `number` and `attempt`.
#[must_use]
pub fn pseudo_random(number: u64, attempt: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&number.to_le_bytes(), attempt)
}

impl CounterTable {
    pub(crate) fn new(seed: u64) -> Self {
        CounterTable {
            seed,
            index: (0..SHARDS).map(|_| HashTable::new()).collect(),
            chunks: Vec::new(),
            used: 0,
            free: Vec::new(),
            long_keys: Vec::new(),
            free_long_keys: Vec::new(),
            long_key_bytes: 0,
            expiries: BTreeMap::new(),
            recent: Bits::default(),
            hand: 0,
            live: Bits::default(),
            with_out_of_line: Bits::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used - self.free.len()
    }

    /// Sizes the index for this many counters, or as many as fit the budget, because growing it rehashes every key.
    pub(crate) fn reserve(&mut self, counters: u64, budget_bytes: usize) {
        let fitting = budget_bytes / COUNTER_BYTES;
        let each = usize::try_from(counters).unwrap_or(usize::MAX).min(fitting) / SHARDS;
        for shard in &mut self.index {
            shard.reserve(each, |_| 0);
        }
    }

    /// Bytes allocated.
    pub(crate) fn memory_bytes(&self) -> usize {
        let index: usize = self.index.iter().map(HashTable::allocation_size).sum();
        let cells = self.chunks.len() * CHUNK_CELLS * size_of::<Cell>();
        index
            + cells
            + self.out_of_line_bytes()
            + self.free.capacity() * 4
            + self.free_long_keys.len() * LONG_KEY_BYTES
            + self.recent.memory_bytes()
            + self.live.memory_bytes()
            + self.with_out_of_line.memory_bytes()
    }

    /// Bytes that `incoming` insertions would allocate, out-of-line bytes excluded.
    pub(crate) fn growth_bytes(&self, incoming: usize) -> usize {
        let free = self.free.len() + self.chunks.len() * CHUNK_CELLS - self.used;
        incoming.saturating_sub(free).next_multiple_of(CHUNK_CELLS) * COUNTER_BYTES
    }

    /// Bytes of cells, index and bits. Evicting counters frees none of them.
    pub(crate) fn fixed_bytes(&self) -> usize {
        self.memory_bytes() - self.out_of_line_bytes()
    }

    /// Bytes a key uses out of line.
    pub(crate) fn out_of_line_key_bytes(key: &[u8]) -> usize {
        if key.len() <= INLINE_MAX { 0 } else { key.len() + LONG_KEY_BYTES }
    }

    /// Bytes of long keys and expiries. Evicting their counters frees them.
    pub(crate) fn out_of_line_bytes(&self) -> usize {
        let long_keys = self.long_keys.len() - self.free_long_keys.len();
        self.long_key_bytes + long_keys * LONG_KEY_BYTES + self.expiries.len() * EXPIRY_BYTES
    }

    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<CellId> {
        self.index[shard(hash)].find(hash, |&id| self.key(id) == key).copied()
    }

    /// The likely cell for `hash`, found without reading the cell itself.
    pub(crate) fn candidate(&self, hash: u64) -> Option<CellId> {
        self.index[shard(hash)].find(hash, |_| true).copied()
    }

    /// Loads a cell into the processor's cache.
    pub(crate) fn prefetch(&self, id: CellId) {
        let cell = self.cell(id);
        std::hint::black_box(cell.key_len ^ cell.counter[PACKED_BYTES / 2] ^ cell.counter[PACKED_BYTES - 1]);
    }

    /// Whether the cell is live and holds `key`.
    pub(crate) fn holds(&self, id: CellId, key: &[u8]) -> bool {
        self.live.get(id as usize) && self.key(id) == key
    }

    pub(crate) fn touch(&mut self, id: CellId) {
        self.recent.set(id as usize);
    }

    pub(crate) fn key(&self, id: CellId) -> &[u8] {
        self.key_of(self.cell(id))
    }

    pub(crate) fn counter(&self, id: CellId) -> Counter {
        Counter::unpack(&self.cell(id).counter)
    }

    /// When the counter expires. Costs one branch if no counter does.
    pub(crate) fn expiry(&self, id: CellId) -> Option<Millis> {
        if self.expiries.is_empty() { None } else { self.expiries.get(&id).copied() }
    }

    pub(crate) fn state(&self, id: CellId) -> CounterState {
        CounterState { counter: self.counter(id), expires_at: self.expiry(id) }
    }

    /// Replaces a counter; its expiry stays.
    pub(crate) fn put(&mut self, id: CellId, counter: &Counter) {
        let at = id as usize;
        counter.pack(&mut self.chunks[at / CHUNK_CELLS][at % CHUNK_CELLS].counter);
    }

    /// Replaces an expiry and returns the old one.
    pub(crate) fn put_expiry(&mut self, id: CellId, expires_at: Option<Millis>) -> Option<Millis> {
        match expires_at {
            Some(at) => {
                self.with_out_of_line.set(id as usize);
                self.expiries.insert(id, at)
            }
            None if self.expiries.is_empty() => None,
            None => {
                if self.cell(id).key_len != LONG {
                    self.with_out_of_line.clear(id as usize);
                }
                self.expiries.remove(&id)
            }
        }
    }

    /// The first live cell at or after `from`.
    pub(crate) fn next_live(&self, from: usize) -> Option<CellId> {
        self.live.next(from).map(|at| at as CellId)
    }

    /// A live cell, chosen uniformly by `number`; `None` if there is none.
    pub(crate) fn sample(&self, number: u64) -> Option<CellId> {
        /// Random cells to try before counting the live ones, which is rarely needed unless over 19 in 20 cells are
        /// free.
        const TRIES: u64 = 64;
        let used = self.used as u64;
        let chosen = (0..TRIES).map(|attempt| pseudo_random(number, attempt).checked_rem(used).unwrap_or(0) as usize);
        let found = chosen.into_iter().find(|&at| self.live.get(at));
        let at = found
            .or_else(|| self.live.nth(pseudo_random(number, TRIES).checked_rem(self.live.count() as u64)? as usize));
        at.map(|at| at as CellId)
    }

    /// Cells that were ever used.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Adds a counter whose key is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, key: &[u8], state: &CounterState) -> CellId {
        let (key_field, key_len) = self.store_key(key);
        let mut cell = Cell { counter: [0; PACKED_BYTES], key: key_field, key_len };
        state.counter.pack(&mut cell.counter);
        let id = self.free.pop().unwrap_or_else(|| {
            if self.used == self.chunks.len() * CHUNK_CELLS {
                self.chunks.push(vec![cell; CHUNK_CELLS].into_boxed_slice());
            }
            self.used += 1;
            (self.used - 1) as CellId
        });
        self.chunks[id as usize / CHUNK_CELLS][id as usize % CHUNK_CELLS] = cell;
        self.live.set(id as usize);
        self.recent.set(id as usize);
        if key_len == LONG {
            self.with_out_of_line.set(id as usize);
        }
        self.put_expiry(id, state.expires_at);
        let mut shard_index = std::mem::take(&mut self.index[shard(hash)]);
        shard_index.insert_unique(hash, id, |&other| key_hash(self.seed, self.key(other)));
        self.index[shard(hash)] = shard_index;
        id
    }

    pub(crate) fn remove(&mut self, id: CellId) {
        let hash = key_hash(self.seed, self.key(id));
        if let Ok(entry) = self.index[shard(hash)].find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        let cell = *self.cell(id);
        if cell.key_len == LONG {
            let number = long_number(&cell);
            self.long_key_bytes -= self.long_keys[number as usize].len();
            self.long_keys[number as usize] = Box::default();
            self.free_long_keys.push(number);
        }
        self.put_expiry(id, None);
        self.with_out_of_line.clear(id as usize);
        self.live.clear(id as usize);
        self.free.push(id);
    }

    /// Clock eviction: advances the hand, at most twice around, and removes victims that were not touched since it last
    /// passed and are not pinned, until `enough` are evicted. Works on whole words of bits, so that passing a million
    /// cells takes microseconds. Returns the number evicted.
    pub(crate) fn evict(&mut self, enough: usize, victims: Victims, pinned: &[&Bits]) -> usize {
        let mut evicted = 0;
        let words = self.used.div_ceil(Bits::WORD);
        for _ in 0..2 * words {
            if evicted >= enough {
                break;
            }
            self.hand = if self.hand + 1 < words { self.hand + 1 } else { 0 };
            let recent = self.recent.take_word(self.hand);
            let kept = pinned.iter().fold(recent, |kept, bits| kept | bits.word(self.hand));
            let candidates = match victims {
                Victims::Any => self.live.word(self.hand),
                Victims::WithOutOfLine => self.with_out_of_line.word(self.hand),
            };
            let mut evictable = candidates & !kept;
            while evictable != 0 {
                self.remove((self.hand * Bits::WORD) as CellId + evictable.trailing_zeros());
                evictable &= evictable - 1;
                evicted += 1;
            }
        }
        evicted
    }

    fn cell(&self, id: CellId) -> &Cell {
        &self.chunks[id as usize / CHUNK_CELLS][id as usize % CHUNK_CELLS]
    }

    fn key_of<'a>(&'a self, cell: &'a Cell) -> &'a [u8] {
        match cell.key_len {
            LONG => &self.long_keys[long_number(cell) as usize],
            len => &cell.key[..usize::from(len)],
        }
    }

    fn store_key(&mut self, key: &[u8]) -> ([u8; INLINE_MAX], u8) {
        let mut field = [0; INLINE_MAX];
        if key.len() <= INLINE_MAX {
            field[..key.len()].copy_from_slice(key);
            return (field, key.len() as u8);
        }
        self.long_key_bytes += key.len();
        let number = match self.free_long_keys.pop() {
            Some(number) => {
                self.long_keys[number as usize] = key.into();
                number
            }
            None => {
                self.long_keys.push(key.into());
                (self.long_keys.len() - 1) as u32
            }
        };
        field[..4].copy_from_slice(&number.to_le_bytes());
        (field, LONG)
    }
}

fn long_number(cell: &Cell) -> u32 {
    u32::from_le_bytes([cell.key[0], cell.key[1], cell.key[2], cell.key[3]])
}

/// Taken from the middle of the hash, because the hash table uses the lowest and highest bits.
fn shard(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}
