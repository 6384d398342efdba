//! Rendering of an answer's Markdown in a real browser: the right nodes, and nothing that a hostile text asks for.

use moex_tests::browser::{Browser, Tab};
use moex_tests::hub::Hub;
use serde_json::{Value, json};

/// Markdown and the HTML that it becomes.
const SHOWN: [(&str, &str); 23] = [
    ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
    (
        "*a* _b_ **c** __d__ ***e*** ~~f~~",
        "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <em><strong>e</strong></em> <del>f</del></p>",
    ),
    ("snake_case_name 2 * 3 * 4 \\*no\\*", "<p>snake_case_name 2 * 3 * 4 *no*</p>"),
    ("**open and *nested* one**", "<p><strong>open and <em>nested</em> one</strong></p>"),
    ("`a*b*` ``c`d`` `open", "<p><code>a*b*</code> <code>c`d</code> `open</p>"),
    ("# One\n### Three ###\n#no", "<h2>One</h2><h3>Three</h3><p>#no</p>"),
    ("### First", "<h2>First</h2>"),
    ("***", "<hr>"),
    (
        "- a\n- b\n  - c",
        "<ul><li><span>a</span></li><li><span>b</span><ul><li><span>c</span></li></ul></li></ul>",
    ),
    ("3. a\n4. b", "<ol start=3><li><span>a</span></li><li><span>b</span></li></ol>"),
    ("1. a\n\n   more\n2. b", "<ol><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>"),
    (
        "- [x] done\n- [ ] not",
        "<ul><li><input checkbox checked><span>done</span></li><li><input checkbox><span>not</span></li></ul>",
    ),
    ("> a\nb\n> - c", "<blockquote><p>a\nb</p><ul><li><span>c</span></li></ul></blockquote>"),
    (
        "| a | b |\n|---|--:|\n| 1 |\n| `x|y` \\| z | 2 | 3 |",
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td></td></tr>\
         <tr><td><code>x|y</code> | z</td><td>2</td></tr></tbody></table>",
    ),
    ("```rust\nlet a = 1;\n\n**b**\n```\nafter", "<pre><code>let a = 1;\n\n**b**</code></pre><p>after</p>"),
    ("~~~\n\tx\n~~", "<pre><code>\tx\n~~</code></pre>"),
    ("[a](https://x.example/b_(c) \"t\") b", "<p><a https://x.example/b_(c)>a</a> b</p>"),
    (
        "<https://x.example/> and https://y.example/z.",
        "<p><a https://x.example/>https://x.example/</a> and <a https://y.example/z>https://y.example/z</a>.</p>",
    ),
    ("![cat](https://x.example/c.png)", "<p><a https://x.example/c.png>cat</a></p>"),
    // These stay plain text.
    (
        "<img src=x onerror=alert(1)><script>alert(1)</script>",
        "<p>&lt;img src=x onerror=alert(1)&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>",
    ),
    (
        "[a](javascript:alert(1)) [b](/swarm) [c](data:text/html,x) [d](JaVaScript:x)",
        "<p>[a](javascript:alert(1)) [b](/swarm) [c](data:text/html,x) [d](JaVaScript:x)</p>",
    ),
    (
        "[a\"onclick=x](https://x.example/\"onclick=\"x)",
        "<p><a https://x.example/%22onclick=%22x>a\"onclick=x</a></p>",
    ),
    (
        "```\"><img src=x onerror=alert(1)>\n</code></pre><b>x\n```",
        "<pre><code>&lt;/code&gt;&lt;/pre&gt;&lt;b&gt;x</code></pre>",
    ),
];

/// Texts that make careless Markdown parsers slow: a beginning, a repeated part, an end.
const SLOW: [(&str, &str, &str); 18] = [
    ("", "*a **b ", ""),
    ("", "a* ", ""),
    ("", "_a ", "x* x* x*"),
    ("", "*", "a"),
    ("", "**a", "**"),
    ("", "[", "](x)"),
    ("", "[a](", ""),
    ("", "[a](https://x \"", ""),
    ("", "`", "a"),
    ("", "`a``b```c", ""),
    ("", "> ", "a"),
    ("", "- ", "a"),
    ("", "  - a\n", ""),
    ("", "|", "\n|-|"),
    ("a|b\n-|-\n", "|`", "\n"),
    ("# ", " ", "x"),
    ("```", " ", "`"),
    ("https://x.example/", ")", ""),
];

/// The HTML of the box, without the parts that are the same everywhere.
const SHOW: &str = "(async (text) => {
    const { markdownView } = await import('/assets/markdown.js');
    const root = document.createElement('div');
    markdownView(root).show(text);
    return plain(root);
})";

const PLAIN: &str = "window.plain = (root) => {
    for (const wrapper of root.querySelectorAll('.code, .table')) wrapper.replaceWith(wrapper.querySelector('pre, table'));
    for (const node of root.querySelectorAll('*')) {
        const link = node.localName === 'a' && node.target === '_blank' && node.rel === 'noopener noreferrer' && node.href;
        const kept = { a: link, input: node.checked ? 'checkbox checked' : 'checkbox', ol: node.start > 1 && `start=${node.start}` };
        for (const { name } of [...node.attributes]) node.removeAttribute(name);
        node.dataset.kept = kept[node.localName] || '';
    }
    return root.innerHTML.replaceAll(/ data-kept=\"([^\"]*)\"/g, (_, kept) => kept && ` ${kept}`);
}";

#[tokio::test]
async fn markdown_becomes_nodes_and_nothing_in_it_becomes_markup() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    tab.eval(PLAIN).await.unwrap();
    for (text, html) in SHOWN {
        assert_eq!(call(&tab, SHOW, text).await, html, "{text}");
    }
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

/// The page renders after each piece; whatever the pieces, the final result is that of the whole text.
#[tokio::test]
async fn a_text_that_grows_ends_as_the_whole_and_keeps_what_does_not_change() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = browser.open(&hub.url).await.unwrap();
    tab.eval(PLAIN).await.unwrap();
    let grow = "(async (text) => {
        const { markdownView } = await import('/assets/markdown.js');
        const root = document.createElement('div');
        const view = markdownView(root);
        let first = null;
        for (let end = 0; end <= text.length; end += 1) {
            view.show(text.slice(0, end));
            if (text.startsWith('\\n\\n', end)) first ??= root.firstChild;
        }
        return [!first || first === root.firstChild, plain(root)];
    })";
    for (text, _) in SHOWN {
        let whole = call(&tab, SHOW, &format!("A first one.\n\n{text}")).await;
        assert_eq!(
            call(&tab, grow, &format!("A first one.\n\n{text}")).await,
            json!([true, whole]),
            "{text}"
        );
    }
    browser.close().await.unwrap();
}

#[tokio::test]
async fn no_text_takes_long_to_show() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = browser.open(&hub.url).await.unwrap();
    let time = "(async (text) => {
        const { markdownView } = await import('/assets/markdown.js');
        const root = document.createElement('div');
        const begin = performance.now();
        markdownView(root).show(text);
        const deepest = (node) => 1 + Math.max(0, ...[...node.children].slice(0, 100).map(deepest));
        return [performance.now() - begin, deepest(root)];
    })";
    for (begin, repeated, end) in SLOW {
        let text = format!("{begin}{}{end}", repeated.repeat(50_000 / repeated.len()));
        let told = call(&tab, time, &text).await;
        let (millis, depth) = (told[0].as_f64().unwrap(), told[1].as_u64().unwrap());
        // With quadratic time, a text of this length would take minutes.
        assert!(millis < 2000.0, "{begin:?} {repeated:?} {end:?} took {millis} ms");
        assert!(depth < 100, "{repeated:?} nests {depth} deep");
    }
    browser.close().await.unwrap();
}

async fn call(tab: &Tab, function: &str, text: &str) -> Value {
    tab.eval(&format!("{function}({})", json!(text))).await.unwrap()
}
