//! Every browser interface that the worker uses. No other file calls JavaScript by name.

use js_sys::{Array, ArrayBuffer, Function, JsString, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    // Time. Milliseconds.
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    pub(super) fn performance_now() -> f64;
    #[wasm_bindgen(js_name = setTimeout)]
    pub(super) fn set_timeout(handler: &Function, millis: f64) -> i32;
    #[wasm_bindgen(js_name = clearTimeout)]
    pub(super) fn clear_timeout(handle: i32);

    /// Resolves in the next turn of the event loop, which comes sooner than any timer. By the worker's script.
    #[wasm_bindgen(js_name = moexTurn)]
    fn next_turn() -> Promise;

    /// Posts a message to the page.
    #[wasm_bindgen(js_name = postMessage)]
    pub(super) fn post_message(message: &str);

    /// Resolves to a [`Response`].
    #[wasm_bindgen(catch, js_name = fetch)]
    pub(super) async fn fetch(url: &str, init: &Object) -> Result<JsValue, JsValue>;
    pub(super) type Response;
    #[wasm_bindgen(method, getter)]
    pub(super) fn status(this: &Response) -> u16;
    #[wasm_bindgen(method, getter)]
    pub(super) fn body(this: &Response) -> Option<Stream>;
    #[wasm_bindgen(js_name = ReadableStream)]
    pub(super) type Stream;
    #[wasm_bindgen(method, catch, js_name = getReader)]
    pub(super) fn reader(this: &Stream) -> Result<Reader, JsValue>;
    #[wasm_bindgen(js_name = ReadableStreamDefaultReader)]
    pub(super) type Reader;
    /// Resolves to a [`Chunk`].
    #[wasm_bindgen(method, catch)]
    pub(super) async fn read(this: &Reader) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    pub(super) async fn cancel(this: &Reader) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(js_name = Object)]
    pub(super) type Chunk;
    #[wasm_bindgen(method, getter)]
    pub(super) fn value(this: &Chunk) -> Option<Uint8Array>;

    pub(super) type WebSocket;
    #[wasm_bindgen(constructor, catch)]
    pub(super) fn new(url: &str, protocol: &str) -> Result<WebSocket, JsValue>;
    #[wasm_bindgen(method, setter, js_name = binaryType)]
    pub(super) fn set_binary_type(this: &WebSocket, kind: &str);
    #[wasm_bindgen(method, setter)]
    pub(super) fn set_onopen(this: &WebSocket, handler: Option<&Function>);
    #[wasm_bindgen(method, setter)]
    pub(super) fn set_onmessage(this: &WebSocket, handler: Option<&Function>);
    #[wasm_bindgen(method, setter)]
    pub(super) fn set_onclose(this: &WebSocket, handler: Option<&Function>);
    #[wasm_bindgen(method, getter, js_name = bufferedAmount)]
    pub(super) fn buffered_amount(this: &WebSocket) -> f64;
    #[wasm_bindgen(method, catch)]
    pub(super) fn send(this: &WebSocket, message: &[u8]) -> Result<(), JsValue>;
    #[wasm_bindgen(method, catch)]
    pub(super) fn close(this: &WebSocket, code: u16) -> Result<(), JsValue>;
    pub(super) type MessageEvent;
    #[wasm_bindgen(method, getter)]
    pub(super) fn data(this: &MessageEvent) -> JsValue;

    /// Threads besides this one, started by the worker's script. Resolves to an array of [`Thread`]s.
    #[wasm_bindgen(catch, js_name = moexStartThreads)]
    pub(super) async fn start_threads(hub: &str, token: &str, worker: &str) -> Result<JsValue, JsValue>;
    #[derive(Debug)]
    pub(super) type Thread;
    /// Calls a method of the thread's [`super::thread::TabThread`]; resolves to its result.
    #[wasm_bindgen(method)]
    pub(super) fn call(this: &Thread, method: &str, arguments: Array) -> Promise;
    #[wasm_bindgen(method)]
    pub(super) fn end(this: &Thread);

    // The store of the worker's script. Its promises may be rejected; nothing here throws.
    pub(super) type Store;
    /// Resolves to a [`Place`], or to null.
    #[wasm_bindgen(method, catch)]
    pub(super) async fn place(this: &Store, name: &str) -> Result<JsValue, JsValue>;
    pub(super) type Place;
    #[wasm_bindgen(method, catch, js_name = read)]
    pub(super) async fn read(this: &Place) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch)]
    pub(super) async fn remove(this: &Place) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method, catch, js_name = openPart)]
    pub(super) async fn open_part(this: &Place, block_bytes: f64) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    pub(super) fn write(this: &Place, offset: f64, bytes: &[u8]);
    #[wasm_bindgen(method, catch)]
    pub(super) async fn finish(this: &Place) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    pub(super) fn close(this: &Place);
}

/// The block store of the worker's script; `None` if it has none.
pub(super) fn store() -> Option<Store> {
    let store = global("moexStore");
    store.is_object().then(|| store.unchecked_into())
}

/// The bytes that a promise of the store resolved to; `None` if it failed.
pub(super) fn content(outcome: Result<JsValue, JsValue>) -> Option<Vec<u8>> {
    outcome.ok()?.dyn_into::<Uint8Array>().ok().map(|bytes| bytes.to_vec())
}

/// Returns in the next turn of the event loop.
#[cfg(feature = "gpu")]
pub(super) async fn turn() {
    // It is never rejected.
    drop(wasm_bindgen_futures::JsFuture::from(next_turn()).await);
}

/// How many GPU buffers this worker has made: its script counts them when the browser makes them.
pub(super) fn gpu_buffers_created() -> u64 {
    global("gpuBuffersCreated").as_f64().map_or(0, |count| count as u64)
}

/// The browser's name for the GPU, which is more than it tells wgpu; `None` if it has none.
pub(super) fn gpu_name() -> Option<String> {
    global("gpuName").as_string().filter(|name| !name.is_empty())
}

/// A global variable that the worker's script has set.
fn global(name: &str) -> JsValue {
    Reflect::get(&js_sys::global(), &JsString::from(name)).unwrap_or(JsValue::UNDEFINED)
}

/// `{name: value, …}`.
pub(super) fn object<const N: usize>(fields: [(&str, JsValue); N]) -> Object {
    let object = Object::new();
    for (name, value) in fields {
        // Setting a field of a fresh plain object cannot fail.
        drop(Reflect::set(&object, &JsString::from(name), &value));
    }
    object
}

/// The bytes of a message or chunk, copied out of JavaScript; `None` if it is not binary.
pub(super) fn bytes(value: &JsValue) -> Option<Uint8Array> {
    value.dyn_ref::<ArrayBuffer>().map(|buffer| Uint8Array::new(buffer))
}

/// The text of an exception.
pub(super) fn words(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => format!("{}: {}", error.name(), error.message()),
        None => format!("{error:?}"),
    }
}
