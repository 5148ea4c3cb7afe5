//! What commands that need no cluster print, word for word: `tests/cmd`. `TRYCMD=overwrite` writes them
//! anew; read them then.

fn transcripts(columns: &str, of: &str) {
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .env("COLUMNS", columns)
        .env("HOME", "/nonexistent")
        .case(of);
}

#[test]
fn commands_print_what_their_transcripts_say() {
    transcripts("100", "tests/cmd/*.trycmd");
}

#[test]
fn sixty_columns_are_enough() {
    transcripts("60", "tests/cmd/narrow/*.trycmd");
}
