//! What commands that need no cluster print, word for word: `tests/cmd`. `TRYCMD=overwrite` writes them
//! anew; read them then.

#[test]
fn commands_print_what_their_transcripts_say() {
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .env("HOME", "/nonexistent")
        .case("tests/cmd/*.trycmd")
        .case("tests/cmd/*.toml");
}
