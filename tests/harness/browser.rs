//! A real Chromium without a window, driven by its own driver.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use thirtyfour::common::log::LoggingPrefsLogLevel;
use thirtyfour::error::{WebDriverErrorInner, WebDriverResult};
use thirtyfour::{By, ChromiumLikeCapabilities, DesiredCapabilities, Key, WebDriver};

use super::{block_on, eventually, run, unique};

/// The path in Debian's package; elsewhere it is found by its name.
const CHROMEDRIVER: &str = "/usr/bin/chromedriver";
/// The driver's output once it listens, before its port.
const LISTENS: &str = "started successfully on port ";

/// Returns the visible text of the selected element.
const TEXT: &str = "const found = document.querySelector(arguments[0]); \
                    return found?.checkVisibility() ? found.innerText : ''";

/// The properties of a screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// In pixels of CSS.
    pub(crate) width: u32,
    /// In pixels of CSS.
    pub(crate) height: u32,
    /// A touch screen, with a phone's behavior.
    pub(crate) phone: bool,
    /// The user prefers dark colors.
    pub(crate) dark: bool,
}

/// One browser with one page.
pub(crate) struct Browser {
    page: Option<WebDriver>,
    driver: Child,
}

impl Drop for Browser {
    fn drop(&mut self) {
        if thread::panicking() && self.page.is_some() {
            self.tell();
        }
        if let Some(page) = self.page.take() {
            // The leftovers end with the driver, or with the run.
            drop(block_on(page.quit()));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

impl Browser {
    /// A browser without an open page.
    pub(crate) fn start() -> Browser {
        // On a busy machine the browser may not start within the driver's time, and the driver's
        // port may be taken before it listens. Its driver and directory are then useless.
        let mut failed = Vec::new();
        while failed.len() < 3 {
            match Browser::try_start() {
                Ok(browser) => return browser,
                Err(error) => failed.push(error.to_string()),
            }
        }
        panic!("Chromium: {failed:#?}");
    }

    fn try_start() -> WebDriverResult<Browser> {
        let program = if Path::new(CHROMEDRIVER).exists() { CHROMEDRIVER } else { "chromedriver" };
        let mut driver = Command::new(program)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver: `make test` installs it");
        let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
        let mut browser = Browser { page: None, driver };
        let mut said = Vec::new();
        let port = lines.find_map(|line| {
            said.push(line.expect("text"));
            let (_, port) = said.last()?.split_once(LISTENS)?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let port = port.ok_or_else(|| WebDriverErrorInner::FatalError(said.join("\n")))?;
        // Its later output is dropped, and must not stop it.
        thread::spawn(move || lines.for_each(drop));

        let mut wanted = DesiredCapabilities::chrome();
        // Below the run's directory, which identifies leftover processes.
        let profile = run().directory.join(format!("browser-{}", unique()));
        let profile = format!("--user-data-dir={}", profile.display());
        // The tests run as root, which has no sandbox; and shared memory may be small in a
        // container.
        for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", &profile] {
            wanted.add_arg(argument)?;
        }
        wanted.set_browser_log_level(LoggingPrefsLogLevel::All)?;
        let page = block_on(WebDriver::new(format!("http://127.0.0.1:{port}"), wanted))?;
        browser.page = Some(page);
        Ok(browser)
    }

    fn page(&self) -> &WebDriver {
        self.page.as_ref().expect("there until the end")
    }

    /// Opens an address, from its beginning even if it is open.
    pub(crate) fn open(&self, url: &str) {
        block_on(self.page().goto("about:blank")).expect("a page");
        block_on(self.page().goto(url)).unwrap_or_else(|error| panic!("{url}: {error}"));
    }

    /// Switches to another screen.
    pub(crate) fn look_through(&self, screen: Screen) {
        let Screen { width, height, phone, dark } = screen;
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", media);
    }

    fn devtools(&self, command: &str, parameters: Value) {
        let sent = block_on(self.page().cdp().send_raw(command, parameters));
        sent.unwrap_or_else(|error| panic!("{command}: {error}"));
    }

    /// The whole page as a picture, in its full height.
    pub(crate) fn photograph(&self, screen: Screen, path: &Path) {
        let height = self.run("return document.documentElement.scrollHeight", Value::Null);
        let height = height.as_u64().and_then(|height| u32::try_from(height).ok());
        self.look_through(Screen { height: height.expect("a height"), ..screen });
        // A busy machine may not have drawn it within the driver's time.
        let picture = eventually("a picture", || block_on(self.page().screenshot_as_png()).ok());
        fs::write(path, picture).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.look_through(screen);
    }

    /// The result of a script in the page. `arguments[0]` is `argument`.
    pub(crate) fn run(&self, script: &str, argument: Value) -> Value {
        self.try_run(script, argument).unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    fn try_run(&self, script: &str, argument: Value) -> WebDriverResult<Value> {
        Ok(block_on(self.page().execute(script, vec![argument]))?.json().clone())
    }

    /// The visible text of the element; empty if it is absent or hidden.
    pub(crate) fn text(&self, selector: &str) -> String {
        self.run(TEXT, json!(selector)).as_str().expect("text").to_owned()
    }

    /// Waits until `needle` is visible there, and returns all the visible text.
    pub(crate) fn wait_for(&self, selector: &str, needle: &str) -> String {
        eventually(&format!("{needle:?} in {selector}"), || {
            // A page that is being reloaded cannot be queried.
            let text = self.try_run(TEXT, json!(selector)).ok()?.as_str()?.to_owned();
            text.contains(needle).then_some(text)
        })
    }

    /// Presses a button, or another element, once it can be pressed: live data may be replacing it.
    pub(crate) fn press(&self, selector: &str) {
        // The driver would scroll it behind the header.
        let center = "document.querySelector(arguments[0]).scrollIntoView({block: 'center'})";
        eventually(&format!("{selector} can be pressed"), || {
            self.try_run(center, json!(selector)).ok()?;
            let pressing = async {
                let element = self.page().find(By::Css(selector)).await?;
                element.click().await
            };
            block_on(pressing).ok()
        });
    }

    /// Presses the button with this text inside the element of `selector`.
    pub(crate) fn press_button(&self, selector: &str, text: &str) {
        let script = "const found = [...document.querySelectorAll(`${arguments[0][0]} button`)]\
                      .find((button) => button.innerText === arguments[0][1] && !button.disabled);\
                      found?.click(); return found !== undefined";
        eventually(&format!("the button {text:?} in {selector}"), || {
            self.run(script, json!([selector, text])).as_bool().filter(|pressed| *pressed)
        });
    }

    /// Replaces a field's content, key by key.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        eventually(&format!("{selector} can be typed into"), || {
            let typing = async {
                let field = self.page().find(By::Css(selector)).await?;
                field.clear().await?;
                field.send_keys(text).await
            };
            block_on(typing).ok()
        });
    }

    /// Presses a key at the focus, not on an element, which live data may be replacing.
    pub(crate) fn key(&self, key: Key) {
        block_on(self.page().action_chain().send_keys(key).perform()).expect("a key");
    }

    /// Prints the page after a failed test, on the stderr that no test runner keeps back.
    fn tell(&self) {
        let seen = "return `${location.href}\n${document.body?.innerText}`";
        let seen = self.try_run(seen, Value::Null);
        let log = block_on(self.page().browser_log());
        writeln!(io::stderr(), "the page: {seen:?}\nthe browser: {log:?}").ok();
    }

    /// The browser's complaints since the last call: errors of scripts, refused sources, failed
    /// requests.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = block_on(self.page().browser_log()).expect("a log");
        log.into_iter().map(|entry| format!("{} {}", entry.level, entry.message)).collect()
    }
}
