"""The caching allocator once more: slow, short, in lists, after CUDACachingAllocator.cpp and not after the product.

One stream, one device, a memory fraction set (``capacity``), no CUDA graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20
PAGE = {"small": 2 * MIB, "large": 20 * MIB}


@dataclass(eq=False)
class Block:
    pool: str
    address: int
    size: int
    used: bool = False
    mapped: bool = True
    before: Block | None = None
    after: Block | None = None
    segment_start: int = 0
    calls_when_freed: int = 0

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


@dataclass
class Pool:
    name: str
    free: list[Block] = field(default_factory=list)
    unmapped: list[Block] = field(default_factory=list)
    calls: int = 0

    def by_size(self) -> list[Block]:
        return sorted(self.free, key=lambda b: (b.size, b.address))

    def insert(self, block: Block) -> None:
        block.calls_when_freed = self.calls
        self.free.append(block)

    def age(self, block: Block) -> int:
        return self.calls - block.calls_when_freed


def expandable_size(block: Block) -> int:
    extra = block.after.size if block.after is not None and not block.after.mapped else 0
    return block.size + extra


class OutOfMemoryError(Exception):
    pass


class ReferenceAllocator:
    def __init__(
        self,
        *,
        capacity: int | None = None,
        expandable: bool = False,
        gc_threshold: float | None = None,
        max_split: int | None = None,
    ) -> None:
        self.capacity, self.expandable = capacity, expandable
        self.gc_limit = int(gc_threshold * capacity) if gc_threshold is not None and capacity is not None else None
        self.max_split = max_split
        self.pools = {name: Pool(name) for name in ("small", "large")}
        self.live: list[Block] = []
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.retries = 0
        self.lowest = 0

    # --- what a program calls

    def malloc(self, nbytes: int) -> Block:
        size = max(512, -(-nbytes // 512) * 512)
        pool = self.pools["small" if size <= MIB else "large"]
        block = self.take_cached(pool, size)
        if block is None:
            if self.gc_limit is not None:
                self.collect_garbage()
            block = self.take_new(pool, size)
        if block is None and self.release_oversize(pool, size):
            block = self.take_new(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self.take_new(pool, size)
        if block is None:
            raise OutOfMemoryError
        if self.should_split(block, size):
            rest = Block(
                pool.name, block.address + size, block.size - size, before=block, after=block.after,
                segment_start=block.segment_start,
            )  # fmt: skip
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, size
            pool.insert(rest)
        block.used = True
        self.live.append(block)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        self.live.remove(block)
        self.allocated -= block.size
        block.used = False
        self.merge(block, block.before)
        self.merge(block, block.after)
        self.pools[block.pool].insert(block)

    def empty_cache(self) -> None:
        for pool in self.pools.values():
            for block in list(pool.free):
                if self.expandable:
                    self.unmap(pool, block)
                elif not block.is_split:
                    self.release(pool, block)

    # --- finding a block

    def should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool == "small" or self.expandable:
            return rest >= 512
        return (self.max_split is None or size < self.max_split) and rest > MIB

    def take_cached(self, pool: Pool, size: int) -> Block | None:
        if self.gc_limit is not None:
            pool.calls += 1
        candidates = [b for b in pool.by_size() if b.size >= size]
        if not candidates:
            return None
        found = candidates.pop(0)
        if self.expandable:
            while candidates and expandable_size(candidates[0]) < expandable_size(found):
                found = candidates.pop(0)
        if self.max_split is not None:
            if size < self.max_split and found.size >= self.max_split:
                return None
            if size >= self.max_split and found.size >= size + 20 * MIB:
                return None
        pool.free.remove(found)
        return found

    def take_new(self, pool: Pool, size: int) -> Block | None:
        if size <= MIB:
            wanted = 2 * MIB
        elif size < 10 * MIB:
            wanted = 20 * MIB
        else:
            wanted = -(-size // (2 * MIB)) * 2 * MIB
        if self.capacity is not None and self.reserved + wanted > self.capacity:
            return None
        if self.expandable:
            return self.expand(pool, size)
        self.reserve(wanted)
        return Block(pool.name, self.new_address(wanted), wanted)

    def new_address(self, size: int) -> int:
        """Each segment lies below the last one, with a gap."""
        self.lowest -= size + 2 * MIB
        return self.lowest

    def reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    # --- expandable segments

    def expand(self, pool: Pool, size: int) -> Block:
        block = self.with_room(pool, size)
        if not block.mapped:
            self.map(pool, block, min(block.size, size))
        while block.size < size:
            following = block.after
            assert following is not None
            self.map(pool, following, min(size - block.size, following.size))
            block = following
        pool.free.remove(block)
        return block

    def with_room(self, pool: Pool, size: int) -> Block:
        for start in sorted(pool.unmapped, key=lambda b: b.address):
            if start.before is not None and not start.before.used:
                start = start.before  # noqa: PLW2901  as in the original
            room, block = 0, start
            while room < size and block is not None and not block.used:
                room += block.size
                block = block.after
            if room >= size:
                return start
        total = 1 << 42 if self.capacity is None else self.capacity + self.capacity // 8
        total = -(-total // PAGE[pool.name]) * PAGE[pool.name]
        address = self.new_address(total)
        segment = Block(pool.name, address, total, mapped=False, segment_start=address)
        pool.unmapped.append(segment)
        return segment

    def map(self, pool: Pool, block: Block, size: int) -> None:
        page = PAGE[pool.name]
        mapped = -(-size // page) * page
        pool.unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(
                pool.name, block.address + mapped, block.size - mapped, mapped=False, before=block, after=block.after,
                segment_start=block.segment_start,
            )  # fmt: skip
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.size = rest, mapped
            pool.unmapped.append(rest)
        self.merge(block, block.before)
        self.merge(block, block.after)
        pool.insert(block)
        self.reserve(mapped)

    def unmap(self, pool: Pool, block: Block) -> None:
        page, base = PAGE[pool.name], block.segment_start
        start = base + -(-(block.address - base) // page) * page
        end = base + (block.address + block.size - base) // page * page
        if start >= end:
            return
        pool.free.remove(block)
        if start > block.address:
            head = Block(
                pool.name, block.address, start - block.address, before=block.before, after=block, segment_start=base
            )
            if head.before is not None:
                head.before.after = head
            block.before = head
            pool.insert(head)
        if block.address + block.size > end:
            tail = Block(
                pool.name, end, block.address + block.size - end, before=block, after=block.after, segment_start=base
            )
            if tail.after is not None:
                tail.after.before = tail
            block.after = tail
            pool.insert(tail)
        block.address, block.size, block.mapped = start, end - start, False
        self.merge(block, block.before)
        self.merge(block, block.after)
        self.reserved -= end - start
        if block.is_split:
            pool.unmapped.append(block)

    # --- giving back

    def merge(self, block: Block, neighbour: Block | None) -> None:
        if neighbour is None or neighbour.used or neighbour.mapped != block.mapped:
            return
        pool = self.pools[block.pool]
        (pool.free if neighbour.mapped else pool.unmapped).remove(neighbour)
        if neighbour is block.before:
            block.address, block.before = neighbour.address, neighbour.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        block.size += neighbour.size

    def release(self, pool: Pool, block: Block) -> None:
        assert not block.is_split, "a segment goes back whole"
        pool.free.remove(block)
        self.reserved -= block.size

    def release_oversize(self, pool: Pool, size: int) -> bool:
        if self.max_split is None:
            return False
        wanted = max(size, self.max_split)
        ordered = pool.by_size()
        large_enough = [b for b in ordered if b.size >= wanted]
        if large_enough:
            self.release(pool, large_enough[0])
            return True
        released = 0
        for block in reversed(ordered):
            if released >= wanted or block.size < self.max_split:
                break
            released += block.size
            self.release(pool, block)
        return released >= wanted

    def collect_garbage(self) -> None:
        pool = self.pools["large"]
        if self.gc_limit is None or self.reserved <= self.gc_limit or self.expandable:
            return
        target, reclaimed = self.reserved - self.gc_limit, 0
        while reclaimed < target:
            whole = [b for b in pool.by_size() if not b.is_split]
            if not whole:
                return
            average = sum(pool.age(b) for b in whole) / len(whole)
            old = [b for b in whole if pool.age(b) >= average]
            for block in old:
                reclaimed += block.size
                self.release(pool, block)

    # --- for comparison

    def layout(self) -> list[tuple[str, str, int]]:
        """Every block by address: its pool, what it is, its bytes."""
        blocks = [(b, "used") for b in self.live]
        for pool in self.pools.values():
            blocks += [(b, "free") for b in pool.free] + [(b, "unmapped") for b in pool.unmapped]
        return [(b.pool, state, b.size) for b, state in sorted(blocks, key=lambda pair: pair[0].address)]
