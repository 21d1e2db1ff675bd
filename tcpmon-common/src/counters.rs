//! Counters that are declared once. From one list of fields, `counters!` makes the struct that the programs count in
//! and the struct in which user space adds up what many of them have counted. Adding, subtracting and comparing go
//! through all fields, so a new field needs no further code.

/// A count, or an array of counts. All arithmetic wraps.
pub trait Cells: Copy + PartialEq {
    /// Nothing counted.
    const ZERO: Self;

    /// Adds the counts of `other`. In programs, each addition is atomic: a program that interrupts this one may add to
    /// the same cells of its CPU.
    fn add(&mut self, other: &Self);
}

/// Adds to a cell.
macro_rules! add {
    ($cell:expr, $added:expr, $in_bpf:literal) => {
        #[cfg(target_arch = "bpf")]
        #[expect(unsafe_code, reason = "Rust has no atomic addition for eBPF")]
        // SAFETY: a reference is valid for reads and writes.
        unsafe {
            core::arch::asm!($in_bpf, in(reg) core::ptr::from_mut($cell), in(reg) $added as u64, options(nostack))
        };
        #[cfg(not(target_arch = "bpf"))]
        {
            *$cell = $cell.wrapping_add($added);
        }
    };
}

/// Cells that are counted: their differences are added up.
pub trait Counted: Cells {
    /// The same cells with 64 bits each.
    type Sums: Summed;

    /// What was counted since `before`. Wraps at the width of the cells, so it is right although a cell has wrapped; a
    /// correction downwards is negative (two's complement).
    fn since(&self, before: &Self) -> Self::Sums;
}

/// Cells with 64 bits each, which add up differences.
pub trait Summed: Cells {
    /// Raises each cell to that of `other` where that is larger, and not negative in two's complement.
    fn raise_to(&mut self, other: &Self);
}

impl Cells for u64 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn add(&mut self, other: &Self) {
        add!(self, *other, "lock *(u64 *)({0} + 0) += {1}");
    }
}

impl Counted for u64 {
    type Sums = u64;

    fn since(&self, before: &Self) -> u64 {
        self.wrapping_sub(*before)
    }
}

impl Summed for u64 {
    fn raise_to(&mut self, other: &Self) {
        *self = (*self).max(other.cast_signed().max(0).cast_unsigned());
    }
}

impl Cells for u32 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn add(&mut self, other: &Self) {
        add!(self, *other, "lock *(u32 *)({0} + 0) += {1}");
    }
}

impl Counted for u32 {
    type Sums = u64;

    fn since(&self, before: &Self) -> u64 {
        i64::from(self.wrapping_sub(*before).cast_signed()).cast_unsigned()
    }
}

impl<T: Cells, const N: usize> Cells for [T; N] {
    const ZERO: Self = [T::ZERO; N];

    // `while`, because this also runs in programs, where an iterator would cost more to verify.
    #[inline(always)]
    fn add(&mut self, other: &Self) {
        let mut i = 0;
        while i < N {
            self[i].add(&other[i]);
            i += 1;
        }
    }
}

impl<T: Counted, const N: usize> Counted for [T; N] {
    type Sums = [T::Sums; N];

    fn since(&self, before: &Self) -> Self::Sums {
        core::array::from_fn(|i| self[i].since(&before[i]))
    }
}

impl<T: Summed, const N: usize> Summed for [T; N] {
    fn raise_to(&mut self, other: &Self) {
        for (cell, other) in self.iter_mut().zip(other) {
            cell.raise_to(other);
        }
    }
}

/// Declares the counters of a subject, and their sums with 64 bits each. A `derived` field exists only in the sums: it
/// is a linear function of the others, and so of differences, too. A `split` says that one cell is the sum of two: it
/// stays so in what is shown, although a correction may move a part of it from one to the other.
macro_rules! counters {
    (
        $(#[$counters_meta:meta])*
        counters $counters:ident;
        $(#[$sums_meta:meta])*
        sums $sums:ident;
        { $($(#[$field_meta:meta])* $field:ident: $cells:ty,)* }
        derived { $($(#[$derived_meta:meta])* $derived:ident = |$of:ident| $value:expr;)* }
        splits { $($whole:ident = $rest:ident + $part:ident;)* }
    ) => {
        $(#[$counters_meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            feature = "user",
            derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
        )]
        #[repr(C)]
        pub struct $counters {
            $($(#[$field_meta])* pub $field: $cells,)*
        }

        $(#[$sums_meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(
            feature = "user",
            derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
        )]
        #[repr(C)]
        pub struct $sums {
            $($(#[$field_meta])* pub $field: <$cells as $crate::counters::Counted>::Sums,)*
            $($(#[$derived_meta])* pub $derived: u64,)*
        }

        impl $crate::counters::Cells for $counters {
            const ZERO: Self = Self { $($field: <$cells as $crate::counters::Cells>::ZERO,)* };

            #[inline(always)]
            fn add(&mut self, other: &Self) {
                $($crate::counters::Cells::add(&mut self.$field, &other.$field);)*
            }
        }

        impl $crate::counters::Counted for $counters {
            type Sums = $sums;

            fn since(&self, before: &Self) -> $sums {
                #[allow(unused_mut, reason = "not all counters have derived ones")]
                let mut added = $sums {
                    $($field: $crate::counters::Counted::since(&self.$field, &before.$field),)*
                    $($derived: 0,)*
                };
                $(
                    let $of = &added;
                    added.$derived = $value;
                )*
                added
            }
        }

        impl $crate::counters::Cells for $sums {
            const ZERO: Self = Self {
                $($field: <<$cells as $crate::counters::Counted>::Sums as $crate::counters::Cells>::ZERO,)*
                $($derived: 0,)*
            };

            fn add(&mut self, other: &Self) {
                $($crate::counters::Cells::add(&mut self.$field, &other.$field);)*
                $($crate::counters::Cells::add(&mut self.$derived, &other.$derived);)*
            }
        }

        impl $crate::counters::Summed for $sums {
            #[allow(unused_variables, reason = "not all counters have splits")]
            fn raise_to(&mut self, other: &Self) {
                let before = *self;
                $($crate::counters::Summed::raise_to(&mut self.$field, &other.$field);)*
                $($crate::counters::Summed::raise_to(&mut self.$derived, &other.$derived);)*
                $(
                    let most = self.$whole - before.$part;
                    self.$rest = other.$rest.cast_signed().max(0).cast_unsigned().clamp(before.$rest, most);
                    self.$part = self.$whole - self.$rest;
                )*
            }
        }

        impl Default for $sums {
            fn default() -> Self {
                $crate::counters::Cells::ZERO
            }
        }
    };
}

pub(crate) use counters;

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Counters.
        counters Counters;
        /// Their sums.
        sums Sums;
        {
            /// Bytes.
            bytes: u64,
            /// Bytes of some kind.
            some: u64,
            /// Bins.
            bins: [[u32; 2]; 3],
        }
        derived {
            /// Bytes of no kind.
            none = |of| of.bytes.wrapping_sub(of.some);
        }
        splits { bytes = none + some; }
    }

    #[test]
    fn differences_are_right_although_cells_have_wrapped() {
        let before = Counters { bytes: u64::MAX - 1, some: 5, bins: [[0, u32::MAX]; 3] };
        let mut now = before;
        now.add(&Counters { bytes: 10, some: 4, bins: [[1, 3]; 3] });
        assert_eq!(now.since(&before), Sums { bytes: 10, some: 4, bins: [[1, 3]; 3], none: 6 });
        let back = before.since(&now);
        assert_eq!((back.bytes.cast_signed(), back.bins[2][1].cast_signed(), back.none.cast_signed()), (-10, -3, -6));
    }

    #[test]
    fn sums_are_raised_cell_by_cell_and_never_to_a_negative_number() {
        let mut shown = Sums { bytes: 5, some: 5, bins: [[5, 5]; 3], none: 0 };
        shown.raise_to(&Sums { bytes: 6, some: 4, bins: [[u64::MAX, 6]; 3], none: 2 });
        assert_eq!(shown, Sums { bytes: 6, some: 5, bins: [[5, 6]; 3], none: 1 });
    }

    #[test]
    fn a_part_that_moves_falls_nowhere_and_the_sum_holds() {
        let mut shown = Sums::default();
        for (bytes, some, expected) in [(10, 0, (10, 0)), (10, 8, (10, 0)), (14, 11, (10, 4)), (30, 18, (12, 18))] {
            shown.raise_to(&Sums { bytes, some, none: bytes - some, ..Sums::default() });
            assert_eq!((shown.none, shown.some), expected);
        }
    }
}
