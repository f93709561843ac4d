//! The counters in memory: fixed cells in chunks, found through small hash tables.
//!
//! A counter with a key of up to 21 bytes costs one 102-byte cell and about eight bytes of index. Longer keys live
//! beside the cells, and so do the expiries of the few counters that have one. The index is split so that growing it never stops the partition for long: a table of a
//! hundred thousand entries is rehashed in milliseconds, one of ten million in a second.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::batch::key_hash;
use crate::bits::Bits;
use crate::counter::{Counter, CounterState, PACKED_BYTES, Packed};
use crate::time::Millis;

const INLINE_MAX: usize = 21;
const LONG: u8 = u8::MAX;
/// What a long key costs beside its bytes: its place, and the allocator's share.
const LONG_KEY_BYTES: usize = 32;
/// What an expiry costs at the most: its entry in a tree whose nodes may be half empty.
pub(crate) const EXPIRY_BYTES: usize = 40;
/// Cells are allocated so many at a time: half a mebibyte, to the allocator a size of its own. Anything larger begins and ends
/// where one of its slices does, and what is left of the last one is resident all the same where large pages are in use.
const CHUNK_CELLS: usize = (512 << 10) / size_of::<Cell>();
const SHARDS: usize = 64;
/// What a counter takes at the most, but for what lies beside its cell: the cell, its share of a half-full index that may
/// have to double, and its bits.
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

/// A counter's place in the table, until it is removed.
pub(crate) type CellId = u32;

/// Counters by key.
pub(crate) struct CounterTable {
    seed: u64,
    index: Vec<HashTable<CellId>>,
    chunks: Vec<Box<[Cell]>>,
    /// Cells that were ever in use; those below that are not live are in `free`.
    used: usize,
    free: Vec<CellId>,
    long_keys: Vec<Box<[u8]>>,
    free_long_keys: Vec<u32>,
    long_key_bytes: usize,
    /// When counters expire, for those that do.
    expiries: BTreeMap<CellId, Millis>,
    /// Touched since the eviction hand last passed.
    recent: Bits,
    /// Where the eviction hand stands, in words of bits.
    hand: usize,
    live: Bits,
    /// Cells that have something beside them: a long key or an expiry.
    with_bytes_beside: Bits,
}

/// Which counters are to leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It does not matter which.
    Any,
    /// Those whose leaving makes room for something other than counters.
    WithBytesBeside,
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
            with_bytes_beside: Bits::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used - self.free.len()
    }

    /// Makes room in the index for so many counters, or as many as fit into the budget: an index that grows looks at the
    /// keys of all its cells again.
    pub(crate) fn reserve(&mut self, counters: u64, budget_bytes: usize) {
        let fitting = budget_bytes / COUNTER_BYTES;
        let each = usize::try_from(counters).unwrap_or(usize::MAX).min(fitting) / SHARDS;
        for shard in &mut self.index {
            shard.reserve(each, |_| 0);
        }
    }

    /// Bytes held, by what was allocated.
    pub(crate) fn memory_bytes(&self) -> usize {
        let index: usize = self.index.iter().map(HashTable::allocation_size).sum();
        let cells = self.chunks.len() * CHUNK_CELLS * size_of::<Cell>();
        index
            + cells
            + self.bytes_beside_cells()
            + self.free.capacity() * 4
            + self.free_long_keys.len() * LONG_KEY_BYTES
            + self.recent.memory_bytes()
            + self.live.memory_bytes()
            + self.with_bytes_beside.memory_bytes()
    }

    /// Bytes that `incoming` insertions would add to what is allocated, keys beside the cells left out.
    pub(crate) fn growth_bytes(&self, incoming: usize) -> usize {
        let free = self.free.len() + self.chunks.len() * CHUNK_CELLS - self.used;
        incoming.saturating_sub(free).next_multiple_of(CHUNK_CELLS) * COUNTER_BYTES
    }

    /// Bytes of cells, of the index and of what counts them: none of it becomes less when counters leave.
    pub(crate) fn fixed_bytes(&self) -> usize {
        self.memory_bytes() - self.bytes_beside_cells()
    }

    /// Bytes a key takes beside its cell.
    pub(crate) fn bytes_beside(key: &[u8]) -> usize {
        if key.len() <= INLINE_MAX { 0 } else { key.len() + LONG_KEY_BYTES }
    }

    /// Bytes that become less when counters leave.
    pub(crate) fn bytes_beside_cells(&self) -> usize {
        let long_keys = self.long_keys.len() - self.free_long_keys.len();
        self.long_key_bytes + long_keys * LONG_KEY_BYTES + self.expiries.len() * EXPIRY_BYTES
    }

    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<CellId> {
        self.index[shard(hash)].find(hash, |&id| self.key(id) == key).copied()
    }

    /// Some cell that may be the one for `hash`: most often it is, and finding out costs no look at the cell.
    pub(crate) fn candidate(&self, hash: u64) -> Option<CellId> {
        self.index[shard(hash)].find(hash, |_| true).copied()
    }

    /// Has a cell on its way to the processor's cache.
    pub(crate) fn fetch(&self, id: CellId) {
        let cell = self.cell(id);
        std::hint::black_box(cell.key_len ^ cell.counter[PACKED_BYTES / 2] ^ cell.counter[PACKED_BYTES - 1]);
    }

    /// Whether the cell is in use for `key`.
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

    /// When the counter expires. Where none does, this is one branch.
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

    /// Replaces an expiry; says which one it was.
    pub(crate) fn put_expiry(&mut self, id: CellId, expires_at: Option<Millis>) -> Option<Millis> {
        match expires_at {
            Some(at) => {
                self.with_bytes_beside.set(id as usize);
                self.expiries.insert(id, at)
            }
            None if self.expiries.is_empty() => None,
            None => {
                if self.cell(id).key_len != LONG {
                    self.with_bytes_beside.clear(id as usize);
                }
                self.expiries.remove(&id)
            }
        }
    }

    /// The first cell in use at or after `from`.
    pub(crate) fn next_live(&self, from: usize) -> Option<CellId> {
        self.live.next(from).map(|at| at as CellId)
    }

    /// Cells that were ever in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Adds a counter whose key is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, key: &[u8], held: &CounterState) -> CellId {
        let (key_field, key_len) = self.store_key(key);
        let mut cell = Cell { counter: [0; PACKED_BYTES], key: key_field, key_len };
        held.counter.pack(&mut cell.counter);
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
            self.with_bytes_beside.set(id as usize);
        }
        self.put_expiry(id, held.expires_at);
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
        self.with_bytes_beside.clear(id as usize);
        self.live.clear(id as usize);
        self.free.push(id);
    }

    /// Moves the hand on, twice around at the most, and removes cells that were not touched since it last passed, are to
    /// leave and are in none of `needed`, until `enough` are gone. Goes by whole words of bits: a million cells take microseconds.
    /// Returns how many went.
    pub(crate) fn evict(&mut self, enough: usize, leaving: Leaving, needed: &[&Bits]) -> usize {
        let mut evicted = 0;
        let words = self.used.div_ceil(Bits::WORD);
        for _ in 0..2 * words {
            if evicted >= enough {
                break;
            }
            self.hand = if self.hand + 1 < words { self.hand + 1 } else { 0 };
            let recent = self.recent.take_word(self.hand);
            let kept = needed.iter().fold(recent, |kept, bits| kept | bits.word(self.hand));
            let candidates = match leaving {
                Leaving::Any => self.live.word(self.hand),
                Leaving::WithBytesBeside => self.with_bytes_beside.word(self.hand),
            };
            let mut free = candidates & !kept;
            while free != 0 {
                self.remove((self.hand * Bits::WORD) as CellId + free.trailing_zeros());
                free &= free - 1;
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

/// The hash table uses the lowest and highest bits of a hash; the shard comes from the middle.
fn shard(hash: u64) -> usize {
    (hash >> 32) as usize % SHARDS
}
