//! Amounts as people say them: rounded, with a unit.

/// `12 MiB`, `1.5 GiB`, `900 bytes`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    let unit = UNITS.iter().find(|(factor, _)| bytes >= *factor);
    unit.map_or_else(
        || format!("{bytes} bytes"),
        |(factor, name)| format!("{} {name}", rounded(bytes, *factor)),
    )
}

/// `7d`, `1.5h`, `20s`, `300ms`.
pub(crate) fn duration(micros: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
    ];
    let unit = UNITS.iter().find(|(factor, _)| micros >= *factor);
    unit.map_or_else(
        || format!("{}ms", micros.div_ceil(1000)),
        |(factor, name)| format!("{}{name}", rounded(micros, *factor)),
    )
}

/// One digit behind the point below ten, none above or where it is zero.
fn rounded(amount: u64, factor: u64) -> String {
    let whole = amount / factor;
    let tenths = amount % factor * 10 / factor;
    if whole >= 10 || tenths == 0 {
        whole.to_string()
    } else {
        format!("{whole}.{tenths}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded() {
        for (bytes, words) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (12 << 20, "12 MiB"),
            ((12 << 20) + 700_000, "12 MiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(size(bytes), words);
        }
        for (micros, words) in [
            (1, "1ms"),
            (300_000, "300ms"),
            (1_500_000, "1.5s"),
            (90 * 60_000_000, "1.5h"),
            (7 * 86_400_000_000, "7d"),
        ] {
            assert_eq!(duration(micros), words);
        }
    }
}
