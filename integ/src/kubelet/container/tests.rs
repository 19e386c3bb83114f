use super::*;

#[test]
fn duration_annotations_with_units_are_parsed() {
    assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
    assert_eq!(parse_duration("2s"), Some(Duration::from_secs(2)));
    assert_eq!(parse_duration("1m"), Some(Duration::from_secs(60)));
    assert_eq!(parse_duration("never"), None);
}

#[test]
fn container_killed_by_signal_exits_with_128_plus_signal_number() {
    let how = ended(Ok(ExitStatus::from_raw(9)), Timestamp::UNIX_EPOCH, String::new());
    assert_eq!((how.exit_code, how.signal, how.reason.as_str()), (137, Some(9), "Error"));
    let how = ended(Ok(ExitStatus::from_raw(3 << 8)), Timestamp::UNIX_EPOCH, String::new());
    assert_eq!((how.exit_code, how.signal), (3, None));
}
