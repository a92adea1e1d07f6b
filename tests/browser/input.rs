//! Keys and movements of a keyboard and a mouse.

use serde_json::{Value, json};

use crate::chromium::Page;

pub const TAB: char = '\u{E004}';
pub const ENTER: char = '\u{E007}';
pub const LEFT: char = '\u{E012}';
pub const RIGHT: char = '\u{E014}';

/// The most focusable elements of one page.
const TABS_MAX: usize = 60;

/// The visible outline of the focused element.
const RING: &str = "(() => {
    const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none';
})()";

impl Page {
    /// Presses keys one after the other, with a person's pauses.
    pub async fn press(&self, keys: impl IntoIterator<Item = char>) {
        let actions = keys.into_iter().enumerate().flat_map(|(n, key)| {
            let pause = 20 + [0, 35, 10, 60, 5][n % 5];
            [
                json!({ "type": "keyDown", "value": key.to_string() }),
                json!({ "type": "keyUp", "value": key.to_string() }),
                json!({ "type": "pause", "duration": pause }),
            ]
        });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions.collect::<Vec<Value>>() });
        self.post("actions", json!({ "actions": [keyboard] })).await.unwrap();
    }

    /// Presses Tab until an element has the focus. Each element on the way must show its focus.
    pub async fn tab_to(&self, selector: &str) {
        self.wait(&format!("document.querySelector({selector:?})?.checkVisibility()")).await;
        for _ in 0..TABS_MAX {
            self.press([TAB]).await;
            if self.is_true("document.activeElement !== document.body").await {
                let element = self.evaluate("document.activeElement.outerHTML").await;
                assert!(self.is_true(RING).await, "no ring around {element}");
            }
            if self.is_true(&format!("document.activeElement.matches({selector:?})")).await {
                return;
            }
        }
        panic!("{selector} is not reached by Tab");
    }

    /// Performs mouse actions. A pressed button stays pressed until it is released, also between calls.
    pub async fn mouse(&self, actions: Vec<Value>) {
        let mouse = json!({
            "type": "pointer", "id": "mouse", "parameters": { "pointerType": "mouse" }, "actions": actions,
        });
        self.post("actions", json!({ "actions": [mouse] })).await.unwrap();
    }

    pub async fn middle(&self, selector: &str) -> (f64, f64) {
        let middle = format!(
            "(() => {{
                const one = document.querySelector({selector:?});
                one.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const place = one.getBoundingClientRect();
                return [place.left + place.width / 2, place.top + place.height / 2];
            }})()"
        );
        let middle = self.evaluate(&middle).await;
        (middle[0].as_f64().unwrap(), middle[1].as_f64().unwrap())
    }

    pub async fn double_click(&self, selector: &str) {
        let (x, y) = self.middle(selector).await;
        let (down, up) = (press(), release());
        self.mouse(vec![go_to(x, y, 10), down.clone(), up.clone(), down, up]).await;
    }
}

pub fn press() -> Value {
    json!({ "type": "pointerDown", "button": 0 })
}

pub fn release() -> Value {
    json!({ "type": "pointerUp", "button": 0 })
}

/// A movement to a place in the window, in this number of milliseconds.
pub fn go_to(x: f64, y: f64, duration: u64) -> Value {
    json!({ "type": "pointerMove", "x": x.round(), "y": y.round(), "duration": duration })
}
