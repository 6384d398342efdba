//! The namespaces of a template. One that is stored in itself (`{% set ns.me = ns %}`) is never freed by minijinja, which
//! counts references: its attributes are overwritten when the template ends.

use std::sync::{Arc, Mutex, PoisonError};

use minijinja::{
    Environment, Error, ErrorKind, Value, context,
    functions::namespace,
    value::{ValueKind, ValueOrKwargs},
};

/// Maximum namespaces of a rendering: templates make one for a message at most.
const MAX: usize = 100_000;

/// The namespaces that a rendering has made.
#[derive(Clone, Default)]
pub(super) struct Namespaces(Arc<Mutex<Vec<Value>>>);

impl Namespaces {
    /// Replaces the function `namespace` by one whose results are known here.
    pub(super) fn observe(&self, environment: &mut Environment<'_>) {
        let made = self.clone();
        environment.add_function("namespace", move |defaults: Option<ValueOrKwargs>| {
            let mut made = made.0.lock().unwrap_or_else(PoisonError::into_inner);
            if made.len() == MAX {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("it makes over {MAX} namespaces"),
                ));
            }
            let one = namespace(defaults)?;
            made.push(one.clone());
            Ok(one)
        });
    }

    /// Breaks each cycle of references: one goes through an attribute, set by `{% set ns.name = … %}`, that is an object.
    pub(super) fn release(&self, environment: &Environment<'_>) {
        let made = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for one in made {
            for name in one.try_iter().into_iter().flatten() {
                if is_identifier(&name) && one.get_item(&name).is_ok_and(|value| may_refer(&value)) {
                    let overwrite = format!("{{% set ns.{name} = none %}}");
                    // It cannot fail, and if it does, no more than memory is lost.
                    let _ = environment.render_str(&overwrite, context! { ns => one.clone() });
                }
            }
        }
    }
}

/// Whether an attribute may be set under this name. Others come from a dictionary that the namespace began with, perhaps a
/// client's own, and must not become part of a template.
fn is_identifier(name: &Value) -> bool {
    name.as_str().is_some_and(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
}

/// Whether a value may hold others.
fn may_refer(value: &Value) -> bool {
    !matches!(
        value.kind(),
        ValueKind::Undefined
            | ValueKind::None
            | ValueKind::Bool
            | ValueKind::Number
            | ValueKind::String
            | ValueKind::Bytes
    )
}

#[cfg(test)]
mod tests {
    use minijinja::value::Object;

    use super::*;

    #[derive(Debug)]
    struct Held(#[expect(dead_code, reason = "its references are counted")] Arc<()>);

    impl Object for Held {}

    #[test]
    fn a_name_from_a_dictionary_is_no_template() {
        let ran = Arc::new(Mutex::new(false));
        let (mut environment, namespaces) = (Environment::new(), Namespaces::default());
        namespaces.observe(&mut environment);
        let runs = ran.clone();
        environment.add_function("run", move || *runs.lock().unwrap() = true);
        let source = "{% set ns = namespace({'a = run() %}{% set ns.b': [1]}) %}";
        environment.render_str(source, ()).unwrap();
        namespaces.release(&environment);
        assert!(!*ran.lock().unwrap());
    }

    #[test]
    fn a_namespace_that_holds_itself_is_freed() {
        for holds in ["ns", "[ns]", "namespace(of=[ns])", "{'of': [[ns]]}"] {
            let references = Arc::new(());
            let held = Value::from_object(Held(references.clone()));
            let (mut environment, namespaces) = (Environment::new(), Namespaces::default());
            namespaces.observe(&mut environment);
            let source = format!(
                "{{% set ns = namespace(of=held) %}}{{% set ns.me = {holds} %}}{{{{ ns.me is defined }}}}"
            );
            assert_eq!(environment.render_str(&source, context! { held => held.clone() }).unwrap(), "True");
            namespaces.release(&environment);
            drop((environment, held));
            assert_eq!(Arc::strong_count(&references), 1, "{holds}");
        }
    }
}
