//! Thread names as the kernel keeps them: 16 bytes, padded with zeros. Stored as two words, they take two instructions
//! to compare.

/// A name as two little-endian words.
pub type Name = [u64; 2];

const ONES: u64 = 0x0101_0101_0101_0101;
const SLASHES: u64 = ONES * b'/' as u64;

/// The part before the first `/`, or the whole name: `kworker/3:1H` becomes `kworker`. It has no branch, because the
/// verifier would walk each side of one to the end of the program.
#[inline(always)]
pub fn before_slash([low, high]: Name) -> Name {
    let (in_low, in_high) = (first_slash(low), first_slash(high));
    // All ones if the first word has no slash.
    let whole = ((in_low == 0) as u64).wrapping_neg();
    [low & below(in_low), high & below(in_high) & whole]
}

/// The highest bit of the first byte that is a `/`; 0 if there is none.
#[inline(always)]
fn first_slash(word: u64) -> u64 {
    let word = word ^ SLASHES;
    let zero_bytes = word.wrapping_sub(ONES) & !word & (ONES << 7);
    zero_bytes & zero_bytes.wrapping_neg()
}

/// A mask of all bytes before the one whose highest bit is `bit`; of all bytes if `bit` is 0.
#[inline(always)]
fn below(bit: u64) -> u64 {
    (bit >> 7).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_before_its_first_slash_wherever_that_is() {
        let cut = |name: &str| {
            let mut bytes = [0; 16];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            let words = [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i])));
            let mut expected = [0; 16];
            let end = name.find('/').unwrap_or(name.len());
            expected[..end].copy_from_slice(&name.as_bytes()[..end]);
            let got = before_slash(words).map(u64::to_le_bytes);
            assert_eq!(got.as_flattened(), expected, "{name}");
        };
        for name in
            ["", "nfsd", "kworker/3:1H", "kworker/u32:10", "/", "a/b/c", "1234567/", "12345678/9", "123456789abcdef"]
        {
            cut(name);
        }
        for at in 0..15 {
            let name: [u8; 15] = core::array::from_fn(|i| if i == at { b'/' } else { b'.' });
            cut(core::str::from_utf8(&name).unwrap());
        }
    }
}
