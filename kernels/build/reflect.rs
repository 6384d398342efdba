//! What naga says of a composed shader: that it is valid, what it binds, its constants, how its structs lie.

use std::collections::BTreeMap;

use naga::{
    AddressSpace, Expression, Handle, Literal, Module, StorageAccess, Type, TypeInner,
    valid::{Capabilities, ValidationFlags, Validator},
};

/// The parts of a `Shader` and the checks of its structs, as Rust.
pub(crate) struct Reflection {
    /// `Binding { .. }` for each resource.
    pub(crate) bindings: Vec<String>,
    /// Its constants that are u32, by name.
    pub(crate) constants: BTreeMap<String, u32>,
    /// Threads of a workgroup.
    pub(crate) threads: u32,
    /// Assertions on the engine's structs of the same names.
    pub(crate) layouts: Vec<String>,
}

/// Parses and validates `source`.
pub(crate) fn reflect(source: &str) -> Result<Reflection, String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|e| e.emit_to_string(source))?;
    // The last is `unpack2x16float`, which every WebGPU has.
    let capabilities =
        Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| e.emit_to_string(source))?;

    let (mut bindings, mut layouts) = (Vec::new(), Vec::new());
    for (_, variable) in module.global_variables.iter() {
        let Some(binding) = &variable.binding else { continue };
        let name = variable.name.as_deref().unwrap_or_default();
        let kind = match variable.space {
            AddressSpace::Uniform => "Uniform",
            AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => "Storage",
            AddressSpace::Storage { .. } => "ReadOnlyStorage",
            space => return Err(format!("{name}: nothing is bound as {space:?}")),
        };
        let resource = upper_first(name);
        bindings.push(format!(
            "Binding {{ index: {}, resource: Resource::{resource}, kind: BindingKind::{kind} }}",
            binding.binding
        ));
        layouts.extend(struct_layout(&module, variable.ty));
    }
    let constants =
        module.constants.iter().filter_map(|(_, constant)| match module.global_expressions[constant.init] {
            Expression::Literal(Literal::U32(value)) => Some((constant.name.clone()?, value)),
            _ => None,
        });
    let threads = module.entry_points.first().map_or(0, |entry| entry.workgroup_size.iter().product());
    Ok(Reflection { bindings, constants: constants.collect(), threads, layouts })
}

/// For a struct or an array of one: that the Rust struct of its name has its size and its members' offsets.
fn struct_layout(module: &Module, ty: Handle<Type>) -> Option<String> {
    let ty = match module.types[ty].inner {
        TypeInner::Array { base, .. } => &module.types[base],
        _ => &module.types[ty],
    };
    let TypeInner::Struct { members, span } = &ty.inner else { return None };
    let name = ty.name.as_deref()?;
    let offsets = members.iter().filter_map(|member| {
        let field = member.name.as_deref()?;
        Some(format!(" && core::mem::offset_of!({name}, {field}) == {}", member.offset))
    });
    let offsets: String = offsets.collect();
    Some(format!("const _: () = assert!(size_of::<{name}>() == {span}{offsets});\n"))
}

fn upper_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}
