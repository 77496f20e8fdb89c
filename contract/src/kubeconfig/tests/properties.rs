use proptest::prelude::*;

use super::*;

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ ]{0,8}(- )?(name|cluster|user|token|exec|server|context|extensions|<<|tokenFile): ?.{0,12}",
        "[ ]{0,4}[-?:&*!|>%@`\"'{}\\[\\],#~]{1,4}.{0,6}",
        "\\PC{0,20}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(600), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_reader_panic(
        at in 0_usize..40,
        lines in prop::collection::vec(line(), 0..6),
        cut in 0_usize..4096,
        noise in "\\PC{0,300}",
    ) {
        let good = config(Credential::Token(TOKEN.into())).write();
        let mut text: Vec<String> = good.lines().map(str::to_owned).collect();
        let at = at % text.len();
        text.splice(at..at, lines);
        let text = text.join("\n");
        let cut = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= cut).last().unwrap_or(0);
        for text in [&text, &text[..cut], &noise] {
            for read in [Kubeconfig::read, Kubeconfig::read_local, Kubeconfig::read_template] {
                if let Err(error) = read(WHAT, text) {
                    let error = error.to_string();
                    prop_assert!(!error.contains(TOKEN) && error.len() < 1200, "{}", error);
                }
            }
        }
    }

    #[test]
    fn any_token_and_name_survive_the_file(token in "[!-~]{1,200}", namespace in "[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?") {
        let mut config = config(Credential::Token(token.as_str().into()));
        config.namespace.clone_from(&namespace);
        let again = Kubeconfig::read(WHAT, &config.write()).unwrap();
        prop_assert_eq!(&again.namespace, &namespace);
        let Credential::Token(read) = again.credential else { panic!("not a token") };
        prop_assert_eq!(read.expose_secret(), token);
    }

    #[test]
    fn a_forbidden_field_is_named_whatever_its_value(which in 0_usize..14, value in "\\PC{0,40}") {
        let (pointer, field, fixed) = forbidden().swap_remove(which);
        let value = if fixed.is_boolean() { fixed } else { json!(value) };
        let error = refusal(&with(pointer, field, value));
        prop_assert!(error.contains(field) && error.contains("is not allowed"), "{}", error);
    }
}
